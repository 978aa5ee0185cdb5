"""`tidegate backfill`: the arguments, the work and the output of the command."""
