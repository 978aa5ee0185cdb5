"""Drivers of Kafka, as far as they can be tested without a broker."""
