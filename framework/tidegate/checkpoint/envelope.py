"""The form of every file that the protocol reads back: a version, a checksum, a body.

`{"version":1,"sha256":"<of the body's bytes>","body":{...}}`, one line of JSON. The checksum is of
the body exactly as it stands in the file, so that a torn or edited file is told from a whole one
without knowing what is in it. Journal entries, the journal's hint and manifests use it; nothing
else does.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tidegate.errors import CorruptCheckpointError

VERSION: Final = 1
"""Grows when a reader of today could misread what is written; new fields with defaults do not."""


class _Envelope(msgspec.Struct, kw_only=True):
    version: int
    sha256: str
    body: msgspec.Raw


class _Version(msgspec.Struct):
    version: int


def encode_file(body: msgspec.Struct) -> bytes:
    """The file of a body."""
    raw = msgspec.json.encode(body, order="sorted")
    envelope = _Envelope(version=VERSION, sha256=_digest(raw), body=msgspec.Raw(raw))
    return msgspec.json.encode(envelope) + b"\n"


def decode_file(data: bytes, *, what: str) -> bytes:
    """The body's bytes; CorruptCheckpointError that begins with `what` if the file is not whole."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise written_by_newer(what, f"its format is version {version}")
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.MsgspecError as error:
        message = f"{what} is torn or was edited: it is no whole JSON document ({error})"
        raise CorruptCheckpointError(message) from error
    body = bytes(envelope.body)
    if _digest(body) != envelope.sha256:
        message = f"{what} is torn or was edited: its content does not match its checksum"
        raise CorruptCheckpointError(message)
    return body


def written_by_newer(what: str, how: str) -> CorruptCheckpointError:
    """The error for a file that only a later tidegate can read."""
    return CorruptCheckpointError(
        f"{what} was written by a newer version of tidegate ({how}); run the job with that version"
    )


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
