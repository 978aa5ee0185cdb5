"""Tests of the client: submits, stops, and checks before a start."""
