"""Tests of the tasks of waves, of the rows between them, and of the check of their runs."""
