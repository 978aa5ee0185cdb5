"""Sources: splits are read in order, and their offsets are part of the snapshot."""
