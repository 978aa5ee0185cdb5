"""What every command asks and shows: common options, the display of a run, progress, and Ctrl-C."""
