"""Backfills, as far as they need no Spark; `integration/spark` holds the tests that do."""
