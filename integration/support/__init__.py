"""Shared code of the integration tests: brokers, clusters, commands, and a user's folder."""
