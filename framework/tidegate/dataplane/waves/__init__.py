"""A wave's tasks: subtasks that run for one barrier interval, between rows instead of slots."""
