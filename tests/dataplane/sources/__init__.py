"""The source reader: positions, ends, records that cannot be decoded."""
