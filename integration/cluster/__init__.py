"""Tests of the processes of a cluster: kills, starts, access, leaks."""
