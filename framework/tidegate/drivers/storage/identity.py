"""The identity of a checkpoint storage: a random id in a file that is created once.

A path says nothing about what is mounted there. Processes that use a storage read its id when they
begin, and hand it to the processes that they start. A storage without that id is another one, or it
is gone: nothing may be written to it, and nothing that it lacks counts as missing.
"""

from __future__ import annotations

import secrets
from typing import Final

from tidegate.drivers.storage.probing import TRIES
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore

IDENTITY: Final = "_storage/id"
"""Where the id lies; no job has such a name."""

_ABSENT: Final = f"its folder, or {IDENTITY} in it, does not exist"


def read_or_create(store: BlobStore, where: str) -> str:
    """The id of a storage. The first process to create it wins, for all others and for ever."""
    for _ in range(TRIES):
        found = store.get(IDENTITY)
        if found is not None:
            return found.decode()
        store.create(IDENTITY, secrets.token_hex(8).encode())
    message = f"checkpoint.storage {where} does not say whether it has written; is it reachable?"
    raise StorageError(message)


def gone(where: str, why: str = _ABSENT) -> StorageGoneError:
    """Nothing is there, or nothing that can be read."""
    return StorageGoneError(
        f"The checkpoint storage {where} is gone: {why}. Mount or restore it; nothing is written "
        "to the path until it is back."
    )


def another(where: str, found: str, expected: str) -> StorageGoneError:
    """A second storage lies behind the same path."""
    return StorageGoneError(
        f"The checkpoint storage {where} is gone: another storage is there ({IDENTITY} says "
        f"{found!r}, and the job uses {expected!r}). Mount the right one; nothing is written to "
        "the path until it is back."
    )
