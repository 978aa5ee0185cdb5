"""Pipelines of this project, each code that a user would be glad to copy.

They import the public package `tidegate` and the standard library, and nothing else of ours.
"""
