"""Streams, whose methods add the steps of a pipeline, and what a step checks and declares."""
