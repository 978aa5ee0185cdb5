"""Records and their types: formats, the type of each field, conversions and copies.

The room knows no state and no stream.
"""
