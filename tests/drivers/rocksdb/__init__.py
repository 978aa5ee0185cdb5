"""Tests of the RocksDB store and its changelog."""
