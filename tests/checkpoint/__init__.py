"""Tests of the pure rules of checkpoints: alignment, triggers, restore."""
