"""Tests of the parts of processes that need no process."""
