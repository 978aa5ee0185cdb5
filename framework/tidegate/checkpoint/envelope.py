"""The format of every file that the commit protocol reads back: a version, a checksum, a body.

A file is one line of JSON: `{"version":1,"sha256":"<of the body's bytes>","body":{...}}`. The
checksum covers the exact bytes of the body in the file. So a reader detects a torn or edited file
without knowing what the body means. Journal entries, journal snapshots, manifests and the files of
initial offsets use this format. No other file does.
"""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from tidegate.errors import CorruptCheckpointError

VERSION: Final = 1
"""The version of the format. It grows when a reader of today could misread a new file. A new field
with a default does not change it.
"""


class _Envelope(msgspec.Struct, kw_only=True):
    version: int
    sha256: str
    body: msgspec.Raw


class _Version(msgspec.Struct):
    version: int


def encode_file(body: msgspec.Struct) -> bytes:
    """Return the content of a file with this body."""
    raw = msgspec.json.encode(body, order="sorted")
    envelope = _Envelope(version=VERSION, sha256=_digest(raw), body=msgspec.Raw(raw))
    return msgspec.json.encode(envelope) + b"\n"


def decode_file(data: bytes, *, what: str) -> bytes:
    """Return the bytes of the body. CorruptCheckpointError, with a message that begins with `what`,
    if the file is torn, edited or of a newer version.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > VERSION:
            raise written_by_newer(what, f"its format is version {version}")
        envelope = msgspec.json.decode(data, type=_Envelope)
    except msgspec.MsgspecError as error:
        message = f"{what} is torn or was edited: it is not a whole JSON document ({error})."
        raise CorruptCheckpointError(message) from error
    body = bytes(envelope.body)
    if _digest(body) != envelope.sha256:
        message = f"{what} is torn or was edited: its content does not match its checksum."
        raise CorruptCheckpointError(message)
    return body


def written_by_newer(what: str, how: str) -> CorruptCheckpointError:
    """Return the error for a file that only a newer tidegate can read."""
    return CorruptCheckpointError(
        f"{what} was written by a newer version of tidegate ({how}); run the job with that version."
    )


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
