"""Tests of the cluster's own processes: machines by themselves, and shells without processes."""
