"""From what the user declared to what runs: logical graph, chaining, key groups, rescaling.

Pure: the same pipeline gives the same graph in every process.
"""
