"""The life of a job as its machine decides it."""
