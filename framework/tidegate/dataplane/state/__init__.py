"""Keyed state: cells, the write-back cache, and the store backends behind one interface."""
