"""Sources and sinks as a user declares them, and those of Kafka."""
