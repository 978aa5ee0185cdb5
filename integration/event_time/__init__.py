"""Event time on a real broker."""
