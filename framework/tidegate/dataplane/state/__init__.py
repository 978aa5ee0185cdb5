"""Keyed state: cells, the write-back cache, and the backends behind one contract."""
