"""Event time as a user declares it: durations, watermarks and timers."""
