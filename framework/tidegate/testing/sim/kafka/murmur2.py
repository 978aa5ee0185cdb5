"""Kafka's own hash of a key, by which its Java client and our producers choose a partition.

MurmurHash2 of 32 bits by Austin Appleby (public domain), with the seed that Kafka uses. The real
producer leaves it to librdkafka; here it is computed, for clusters that have none.
"""

from __future__ import annotations

from typing import Final

SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """An unsigned number of 32 bits."""
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
    """As `murmur2_random` and the Java client choose for a record with a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
