"""Tests of the commit protocol under zombies and lost answers; its models are in model/."""
