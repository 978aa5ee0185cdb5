"""Where records enter: splits are read in order, and offsets are part of the snapshot."""
