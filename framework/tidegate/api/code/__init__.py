"""The code of a pipeline: its files, the archive that a submission ships, and references to it."""
