"""Tests of exactly-once output under kills, outages, damage and every kind of end."""
