"""Tests of the sources, the sinks and the Kafka drivers on real brokers."""
