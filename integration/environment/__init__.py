"""Tests of this folder's own tools, and of a bare machine."""
