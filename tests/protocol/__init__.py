"""Tests of the messages and their tags."""
