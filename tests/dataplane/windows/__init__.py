"""Tests of windows: a model, one rule at a time, and the pure parts."""
