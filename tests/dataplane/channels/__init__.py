"""Tests of the channels between subtasks: `dataplane/channels`."""
