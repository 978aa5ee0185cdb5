"""Benchmarks of tidegate and of its parts, in comparison with loops written by hand."""
