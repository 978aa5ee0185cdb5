"""Tests of event time in the data plane."""
