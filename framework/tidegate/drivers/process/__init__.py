"""Processes that end with their parent: starting by role, the lifeline, the fork server. This is
the driver of `ports.processes`.
"""
