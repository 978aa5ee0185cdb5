"""A tool for operators of any Kafka cluster: it shows open transactions and aborts one."""
