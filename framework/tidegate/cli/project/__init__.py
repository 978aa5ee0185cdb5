"""`tidegate new` makes a project, and `tidegate dev` is the loop of its development."""
