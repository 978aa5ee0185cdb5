"""The simulator: its scheduler, its fakes, and thousands of seeds."""
