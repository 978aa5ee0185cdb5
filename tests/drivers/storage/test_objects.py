"""The object-store driver on obstore's in-memory store, and what it makes of obstore's errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
    assert str(caught.value) == (
        "Checkpoint storage memory:///: cannot write a/b: no right Check the credentials, and "
        "their rights to read, write, list and delete."
    )


class Bucket:
    """A server that speaks enough of S3 for conditional puts. `statuses` are its next answers; a
    status of 0 keeps the object and closes the connection without an answer.
    """

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.puts = 0
        self.objects: dict[str, bytes] = {}
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                bucket.puts += 1
                status = bucket.statuses.pop(0) if bucket.statuses else 200
                if status in {0, 200} and bucket.objects.setdefault(self.path, body) != body:
                    status = 412
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("ETag", '"1"')
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                del args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    made = Bucket()
    settings = {
        "AWS_ENDPOINT": f"http://127.0.0.1:{made.server.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "key",
        "AWS_REGION": "eu-central-1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (403, r"cannot create a: .* 403 Forbidden.* Check the credentials"),
        (401, r"cannot create a: .* 401 Unauthorized.* Check the credentials"),
        (404, r"cannot create a: .* 404 Not Found.* Check that the bucket exists"),
        (400, r"cannot create a: .* 400 Bad Request"),
    ],
)
def test_refused_create_raises_the_reason_of_the_store(
    bucket: Bucket, status: int, reason: str
) -> None:
    bucket.statuses = [status] * 20
    store = open_store("s3://bucket/jobs")
    with pytest.raises(StorageError, match=reason):
        store.create("a", b"1")
    assert (bucket.puts, bucket.objects) == (1, {})
    with pytest.raises(StorageError, match=rf"cannot create probe/.* {status} "):
        store.probe()


@pytest.mark.parametrize("status", [403, 401, 404, 400])
@pytest.mark.parametrize("first", [0, 500, 503])
def test_refusal_after_a_try_without_an_answer_is_unknown(
    bucket: Bucket, first: int, status: int
) -> None:
    bucket.statuses = [first, status]
    store = open_store("s3://bucket/jobs")
    assert store.create("a", b"1") is CreateResult.UNKNOWN
    assert bucket.puts == 2
    assert store.create("a", b"2" if first == 0 else b"1") is (
        CreateResult.EXISTS if first == 0 else CreateResult.CREATED
    )


def test_create_is_repeated_after_an_answer_that_asks_for_it(bucket: Bucket) -> None:
    bucket.statuses = [503, 503]
    assert open_store("s3://bucket/jobs").create("a", b"1") is CreateResult.CREATED
    assert bucket.puts == 3


def test_a_store_is_opened_by_its_url(tmp_path: Path) -> None:
    assert isinstance(open_store("s3://bucket/folder"), ObjectStore)
    assert repr(open_store("file:///some%20where/x")) == "<LocalStore /some where/x>"
    assert repr(open_store(str(tmp_path))) == f"<LocalStore {tmp_path}>"
    with pytest.raises(ConfigError, match=r"no driver knows ftp://.*s3://"):
        open_store("ftp://host/x")
    with pytest.raises(ConfigError, match="names no local folder"):
        open_store("file://host/x")
    with pytest.raises(ConfigError, match=r"'s3://' cannot be opened: Generic URL error"):
        open_store("s3://")
