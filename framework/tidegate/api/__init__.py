"""The public API: pipelines, streams, functions, state, sources, sinks and formats.

Declarations are checked when Python reads them. Nothing in this package processes a record.
"""
