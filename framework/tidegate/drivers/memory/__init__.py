"""The key-value store in memory, for the state backend `memory` and for tests."""
