"""Checkpoint storage: one contract, and what only a folder can do wrong."""
