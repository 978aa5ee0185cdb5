"""Event time in the data plane: how watermarks of channels and partitions combine.

`api/time/watermarks.py` has the declarations, and `sources/watermarks.py` the partitions of a
source.
"""
