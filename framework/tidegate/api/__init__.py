"""What users write: pipelines, streams, functions, state, sources, sinks and formats.

Declarations are checked when Python reads them; nothing here runs a record.
"""
