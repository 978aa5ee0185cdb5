"""The hash of a key with which Kafka's Java client and tidegate's producers choose a partition.

The hash is MurmurHash2 with 32 bits by Austin Appleby (public domain), with the seed of Kafka. The
real producer leaves it to librdkafka. The fake cluster has no librdkafka and computes it itself.
"""

from __future__ import annotations

from typing import Final

SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the hash as an unsigned number of 32 bits."""
    hashed = SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        word = (word ^ word >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ word
    if whole < len(data):
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as `murmur2_random` and the Java client choose it."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
