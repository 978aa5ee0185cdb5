"""Killing processes of a real cluster at named points of the commit protocol, and looking at what
is left.

`traps` ends a process at a chosen call of its drivers, `mains` are the processes' mains with traps
in them, `breaking` are mains that break the protocol on purpose, `command` is `tidegate run` with
such mains, `runs` starts it and compares output with input. Nothing of this is known to the
framework.
"""
