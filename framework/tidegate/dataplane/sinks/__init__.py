"""Sinks: writers that prepare transactions at a barrier; the committer ends them later."""
