"""Tests of the JobManager: Dispatcher, ResourceManager, leadership and the job store."""
