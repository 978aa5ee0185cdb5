"""Where records leave: writers that prepare at a barrier what the committer ends later."""
