"""The sink writer: intervals, order across barriers, transaction slots."""
