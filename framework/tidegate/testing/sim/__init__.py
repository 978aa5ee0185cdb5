"""Whole clusters in one thread, under one seed and virtual time: fakes of what stands around them.

What is faked here passes the same contract suites as the real drivers.
"""
