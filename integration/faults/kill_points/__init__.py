"""Tests that kill processes of a real cluster at named points of the commit protocol, and examine
the result.

`traps` ends a process at a chosen call of its drivers. `mains` holds the mains of the processes
with traps in their drivers. `breaking` holds mains that break the protocol on purpose. `command` is
`tidegate run` with such mains. `runs` starts the command and compares the output with the input.
The framework knows nothing of these modules.
"""
