"""Operators and subtasks, without channels of their own or a broker."""
