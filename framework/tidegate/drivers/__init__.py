"""The real world: Kafka, RocksDB, storage, RPC, exchange, processes, the clock.

Each driver implements a port and translates foreign errors into ours once, at its own door. No
other room imports the libraries used here.
"""
