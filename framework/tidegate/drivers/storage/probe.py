"""The proof that a store can hold a journal: a second create of one name is refused.

Everything that must be decided once rests on that primitive, and there are stores and mounts that
accept both creates. Both drivers' `probe` call this; a job is refused where it fails.
"""

from __future__ import annotations

from tidegate.errors import RefusedError, StorageError
from tidegate.ports.blobs import BlobStore, CreateResult

TRIES: int = 3
"""Creates whose outcome stays unknown: three in a row are no hiccup of the store."""


def check_create_if_absent(store: BlobStore, where: str, nonce: str) -> None:
    """StorageError if the store does not work, RefusedError if it creates a name twice. `nonce` is
    one that nobody else has.
    """
    path = f"probe/{nonce}"
    data, other = b"first", b"second"
    first = _create(store, path, data, where)
    second = _create(store, path, other, where)
    found = store.get(path)
    store.delete(path)
    if first is not CreateResult.CREATED or second is not CreateResult.EXISTS or found != data:
        message = (
            f"checkpoint.storage {where} can not hold a job's journal: creating one name twice "
            f"gave {first.value!r}, then {second.value!r}, and what is there is {found!r}. It must "
            "refuse the second one: use a local folder or an object store with conditional writes"
        )
        raise RefusedError(message)


def _create(store: BlobStore, path: str, data: bytes, where: str) -> CreateResult:
    for _ in range(TRIES):
        outcome = store.create(path, data)
        if outcome is CreateResult.EXISTS and store.get(path) == data:
            return CreateResult.CREATED  # our own, from a try that the store did not confirm
        if outcome is not CreateResult.UNKNOWN:
            return outcome
    message = f"checkpoint.storage {where} does not say whether it has written; is it reachable?"
    raise StorageError(message)
