"""The commands of a session cluster, and those that show jobs and checkpoints."""
