"""Processes that end with their parent: starting by role, the parent pipe, the fork server. This is
the driver of `ports.processes`.
"""
