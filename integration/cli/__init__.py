"""Tests of the commands with their users' eyes: errors, failures, and what they print."""
