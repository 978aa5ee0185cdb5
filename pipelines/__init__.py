"""Pipelines of this project that users can copy.

Of this project, they import only the public package `tidegate`, as a user would.
"""
