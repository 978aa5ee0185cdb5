"""A simulator that runs whole clusters in one thread, from one seed and in virtual time.

The package fakes what surrounds a cluster: Kafka, storage, network, threads, clocks and processes.
The fakes pass the same contract suites as the real drivers.
"""
