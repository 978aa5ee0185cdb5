"""Tests of the drivers that need no server."""
