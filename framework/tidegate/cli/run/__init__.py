"""`tidegate run`: prepares, starts, watches and stops a run on this machine."""
