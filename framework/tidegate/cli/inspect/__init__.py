"""Commands that show a pipeline and change nothing: check, graph, diff and config."""
