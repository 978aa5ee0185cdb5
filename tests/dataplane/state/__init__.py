"""Tests of keyed state: cells, the write-back cache, snapshots and restore."""
