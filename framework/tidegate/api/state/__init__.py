"""Declared state: values, lists, maps and tables, their keys, stored form, schema and evolution."""
