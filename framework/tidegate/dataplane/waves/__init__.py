"""The tasks of a wave: subtasks that run for one barrier interval and exchange data as rows."""
