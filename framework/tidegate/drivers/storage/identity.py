"""The identity of a checkpoint storage: a random id in a file that is created once.

A path says nothing about what is mounted there. Processes that use a storage read its id when they
begin, and hand it to the processes that they start. A storage without that id is another one, or it
is gone: nothing may be written to it, and nothing that it lacks counts as missing. A file that
holds no id, as a crash may leave it, is never taken for one: an empty id would end the guard.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from tidegate.drivers.storage.probe import TRIES
from tidegate.errors import CorruptCheckpointError, StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore

IDENTITY: Final = "_storage/id"
"""Where the id lies; no job has such a name."""

_ID = re.compile(rb"\s*([0-9a-f]{16})\s*")
"""With the line end that an editor or a shell adds to it."""
_SHOWN_MAX: Final = 40
"""Bytes of a damaged file that a message quotes."""
_ABSENT: Final = f"its folder, or {IDENTITY} in it, does not exist"


def read_or_create(store: BlobStore, where: str) -> str:
    """The id of a storage. The first process to create it wins, for all others and for ever.

    CorruptCheckpointError if the file is there and holds no id.
    """
    for _ in range(TRIES):
        found = store.get(IDENTITY)
        if found is not None:
            return _required(found, where)
        store.create(IDENTITY, secrets.token_hex(8).encode())
    message = f"checkpoint.storage {where} does not say whether it has written; is it reachable?"
    raise StorageError(message)


def id_in(data: bytes) -> str | None:
    """The id that a file holds; None if it holds anything else."""
    found = _ID.fullmatch(data)
    return None if found is None else found[1].decode()


def compare(found: bytes, expected: str, where: str) -> None:
    """StorageGoneError unless the file of a storage, as it was read, holds the expected id."""
    present = id_in(found)
    if present is None:
        raise gone(
            where,
            f"{IDENTITY} in it is damaged, because it holds {_shown(found)} and no id. If this is "
            f"the storage that the job uses, write its id, {expected}, into that file",
        )
    if present != expected:
        raise another(where, present, expected)


def _required(found: bytes, where: str) -> str:
    present = id_in(found)
    if present is None:
        raise CorruptCheckpointError(
            f"The checkpoint storage {where} cannot be told from another one: {IDENTITY} in it is "
            f"damaged, because it holds {_shown(found)} and no id. Restore this file from a "
            "backup. If there is none, stop every job that uses this storage, and then delete the "
            "file: the next process writes a new id."
        )
    return present


def _shown(data: bytes) -> str:
    return repr(data[:_SHOWN_MAX]) + ("..." if len(data) > _SHOWN_MAX else "")


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
