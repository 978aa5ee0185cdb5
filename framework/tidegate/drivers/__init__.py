"""The drivers for real systems: Kafka, RocksDB, storage, RPC, exchange, processes, the clock.

Each driver implements a port. It translates errors of its libraries into tidegate's errors once, at
its own boundary. No other package imports the libraries used here.
"""
