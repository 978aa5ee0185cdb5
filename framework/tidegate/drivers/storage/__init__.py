"""Checkpoint storage: a folder of this machine, or an object store.

`open_store` takes the setting `checkpoint.dir`. Both drivers pass the same contract tests
(`tests/contracts/blobs.py`), and each translates the errors of its library once.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidegate.errors import ConfigError
from tidegate.ports.blobs import BlobStore
from tidegate.storage_location import is_url

OBJECT_SCHEMES = ("s3", "gs", "az", "memory")
"""The URL schemes that obstore supports with conditional creates. `memory` is for tests within one
process.
"""


def open_store(url: str) -> BlobStore:
    """Return the storage at a path or URL. ConfigError if no driver knows the scheme, or if the URL
    cannot be opened.

    The function reads and writes nothing. `BlobStore.probe` checks whether the storage can be used.
    """
    from tidegate.drivers.storage.local import LocalStore

    if not is_url(url):
        return LocalStore(Path(url))
    scheme = url.split("://", maxsplit=1)[0]
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"} or not parts.path:
            message = (
                f"checkpoint.dir {url!r} names no local folder; write it as file:///PATH, with "
                "three slashes."
            )
            raise ConfigError(message)
        return LocalStore(Path(unquote(parts.path)))
    if scheme not in OBJECT_SCHEMES:
        message = (
            f"checkpoint.dir {url!r}: no driver knows {scheme}://. Give a folder's path, or a "
            f"URL of one of file://, {', '.join(f'{known}://' for known in OBJECT_SCHEMES)}."
        )
        raise ConfigError(message)
    from tidegate.drivers.storage.objects import ObjectStore

    return ObjectStore.open(url)
