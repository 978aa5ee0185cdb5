"""The key-value store in RocksDB, through rocksdict: `RocksDBStore` implements `ports/kv.py`.

This is the only package that imports rocksdict. It translates the exceptions of rocksdict.
"""

from tidegate.drivers.rocksdb.store import RocksDBStore

__all__ = ["RocksDBStore"]
