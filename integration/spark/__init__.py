"""Tests of backfills on a real Spark. `make test-spark` runs them in an environment with Spark."""
