"""The identity of a checkpoint storage: a random id in a file that is created once.

A path does not show which storage is mounted there. Processes that use a storage read its id when
they start, and pass it to the processes that they start. A storage without that id is a different
one, or the right one is gone. A process must not write to such a storage, and must not conclude
that an object is missing because the storage lacks it. A crash may leave a file without an id. Such
a file is never accepted, because an empty id would switch this check off.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from tidegate.drivers.storage.probe import TRIES
from tidegate.errors import CorruptCheckpointError, StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore

IDENTITY: Final = "_storage/id"
"""The path of the file with the id. No job can have the name of its folder."""

_ID = re.compile(rb"\s*([0-9a-f]{16})\s*")
"""The content of the file: an id, possibly with the line end that an editor or a shell adds."""
_SHOWN_MAX: Final = 40
"""The maximum number of bytes of a damaged file that a message quotes."""
_ABSENT: Final = f"its folder, or {IDENTITY} in it, does not exist"


def read_or_create(store: BlobStore, where: str) -> str:
    """Return the id of a storage, and create it if it is missing. The id of the first process that
    creates it is permanent and valid for all processes.

    CorruptCheckpointError if the file exists and contains no id. StorageError if the store does not
    answer whether it created the file.
    """
    for _ in range(TRIES):
        found = store.get(IDENTITY)
        if found is not None:
            return _parse_valid_id(found, where)
        store.create(IDENTITY, secrets.token_hex(8).encode())
    message = (
        f"checkpoint.dir {where} does not say whether it has written. Check that it is reachable."
    )
    raise StorageError(message)


def parse_id(data: bytes) -> str | None:
    """Return the id in a file's content. None if the content is anything else."""
    found = _ID.fullmatch(data)
    return None if found is None else found[1].decode()


def compare(found: bytes, expected: str, where: str) -> None:
    """Raise StorageGoneError unless `found`, the content of a storage's id file, is the expected
    id.
    """
    present = parse_id(found)
    if present is None:
        raise storage_gone_error(
            where,
            f"{IDENTITY} in it is damaged, because it holds {_shown(found)} and no id. If this is "
            f"the storage that the job uses, write its id, {expected}, into that file",
        )
    if present != expected:
        raise other_storage_error(where, present, expected)


def _parse_valid_id(found: bytes, where: str) -> str:
    present = parse_id(found)
    if present is None:
        raise CorruptCheckpointError(
            f"The checkpoint storage {where} cannot be identified: {IDENTITY} in it is damaged, "
            f"because it holds {_shown(found)} and no id. Restore this file from a backup. If no "
            "backup exists, stop every job that uses this storage, and then delete the file: the "
            "next process writes a new id."
        )
    return present


def _shown(data: bytes) -> str:
    return repr(data[:_SHOWN_MAX]) + ("..." if len(data) > _SHOWN_MAX else "")


def storage_gone_error(where: str, why: str = _ABSENT) -> StorageGoneError:
    """Return the error for a storage that is missing or cannot be read."""
    return StorageGoneError(
        f"The checkpoint storage {where} is gone: {why}. Mount or restore it; nothing is written "
        "to the path until it is back."
    )


def other_storage_error(where: str, found: str, expected: str) -> StorageGoneError:
    """Return the error for a different storage behind the same path."""
    return StorageGoneError(
        f"The checkpoint storage {where} is gone: another storage is there ({IDENTITY} says "
        f"{found!r}, and the job uses {expected!r}). Mount the right one; nothing is written to "
        "the path until it is back."
    )
