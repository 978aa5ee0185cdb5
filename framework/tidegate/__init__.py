"""tidegate: Kafka-native, exactly-once pipelines in Python.

This package is what users import; everything below it is a room of its own with walls around it
(ARCHITECTURE.md shows them). Code inside the framework imports the rooms, never this module.
"""
