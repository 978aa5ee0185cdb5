"""`tidegate kafka`: a broker for development, topics, and records by hand."""
