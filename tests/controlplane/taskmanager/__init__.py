"""Tests of the TaskManager: its machine, and its registration."""
