"""The key-value store in RocksDB, by rocksdict: `RocksDBStore` implements `ports/kv.py`.

The only room that imports rocksdict; what that raises is translated here.
"""

from tidegate.drivers.rocksdb.store import RocksDBStore

__all__ = ["RocksDBStore"]
