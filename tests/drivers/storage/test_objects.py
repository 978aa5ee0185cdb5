"""The object-store driver on obstore's in-memory store, and what it makes of obstore's errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, PreconditionError

from tests.contracts.blobs import BlobStoreContract
from tidegate.drivers.storage import open_store
from tidegate.drivers.storage.objects import ObjectStore
from tidegate.errors import ConfigError, StorageError
from tidegate.ports.blobs import BlobStore, CreateResult


class TestContract(BlobStoreContract):
    @pytest.fixture
    def store(self) -> BlobStore:
        return open_store("memory:///")


def _raising(error: Exception) -> Any:
    def put(*args: object, **kwargs: object) -> None:
        raise error

    return put


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (PreconditionError("412"), CreateResult.EXISTS),
        (GenericError("409 or no answer"), CreateResult.UNKNOWN),
        (PermissionDeniedError("perhaps only on the second try"), CreateResult.UNKNOWN),
        (TimeoutError("no answer"), CreateResult.UNKNOWN),
    ],
)
def test_failed_create_returns_exists_or_unknown(
    monkeypatch: pytest.MonkeyPatch, error: Exception, outcome: CreateResult
) -> None:
    store = open_store("memory:///")
    monkeypatch.setattr(obstore, "put", _raising(error))
    assert store.create("a", b"") is outcome


def test_failed_put_raises_storage_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory:///")
    monkeypatch.setattr(obstore, "put", _raising(PermissionDeniedError("no right\n\nDebug source")))
    with pytest.raises(StorageError) as caught:
        store.put("a/b", b"")
    assert str(caught.value) == "Checkpoint storage memory:///: can not write a/b: no right"


def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    assert isinstance(open_store("s3://bucket/folder"), ObjectStore)
    assert repr(open_store("file:///some%20where/x")) == "<LocalStore /some where/x>"
    assert repr(open_store(str(tmp_path))) == f"<LocalStore {tmp_path}>"
    with pytest.raises(ConfigError, match=r"no driver knows ftp://.*s3://"):
        open_store("ftp://host/x")
    with pytest.raises(ConfigError, match="names no local folder"):
        open_store("file://host/x")
    with pytest.raises(ConfigError, match=r"'s3://' can not be opened: Generic URL error"):
        open_store("s3://")
