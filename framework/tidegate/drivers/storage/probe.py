"""The check that a store can hold a journal: the store must refuse a second create of one name.

Every decision that must be made only once depends on that primitive, and some stores and mounts
accept both creates. The `probe` methods of both drivers call this check. If it fails, the job is
refused.
"""

from __future__ import annotations

from tidegate.errors import RefusedError, StorageError
from tidegate.ports.blobs import BlobStore, CreateResult

TRIES: int = 3
"""The number of tries of a create whose outcome stays unknown. Three in a row are not a brief
problem of the store.
"""


def check_create_if_absent(store: BlobStore, where: str, nonce: str) -> None:
    """Create one name twice and check that the store refuses the second create. `nonce` is a text
    that no other process uses.

    StorageError if the store does not work. RefusedError if it does not refuse the second create or
    does not keep the content of the first one.
    """
    path = f"probe/{nonce}"
    data, other = b"first", b"second"
    first = _create(store, path, data, where)
    second = _create(store, path, other, where)
    found = store.get(path)
    store.delete(path)
    if first is not CreateResult.CREATED or second is not CreateResult.EXISTS or found != data:
        message = (
            f"checkpoint.dir {where} cannot hold a job's journal: creating one name twice "
            f"gave {first.value!r}, then {second.value!r}, and what is there is {found!r}. It must "
            "refuse the second one: use a local folder or an object store with conditional writes."
        )
        raise RefusedError(message)


def _create(store: BlobStore, path: str, data: bytes, where: str) -> CreateResult:
    for _ in range(TRIES):
        outcome = store.create(path, data)
        if outcome is CreateResult.EXISTS and store.get(path) == data:
            return CreateResult.CREATED  # by an earlier try that the store did not confirm
        if outcome is not CreateResult.UNKNOWN:
            return outcome
    store.get(path)  # a store that does not answer at all raises its reason here
    message = (
        f"checkpoint.dir {where} does not say whether it has written. Check that it is reachable."
    )
    raise StorageError(message)
