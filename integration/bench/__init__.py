"""Benchmarks: the cost of tidegate, compared with loops written by hand, and of its parts."""
