"""Kills processes of a real cluster at named points of the commit protocol.

`kill_points` ends a process at a chosen call of its drivers. `mains` holds the mains of the
processes with traps in their drivers. `broken_mains` holds mains that break the protocol on
purpose. `command` is `tidegate run` with such mains. `killed_runs` starts the command and compares
the output with the input. The framework knows nothing of these modules.
"""
