"""Processes that end with their parent: spawning by role, the lifeline, the zygote. Driver of
`ports.processes`.
"""
