"""`Pipeline.run`: runs a pipeline of a script or of a notebook."""
