"""Messages as bytes: one version byte, then the tagged struct as MessagePack.

A receiver that does not know the version reports both versions instead of failing on a field.
Within one version, fields are only added, with defaults.
"""

from __future__ import annotations

import msgspec

from tidegate.errors import RpcError
from tidegate.message_text import clause
from tidegate.protocol import messages, reports
from tidegate.protocol.messages import Message

VERSION = 1

_KINDS: tuple[type[Message], ...] = tuple(
    kind
    for module in (messages, reports)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, Message)
    and isinstance(kind.__struct_config__.tag, str)  # a base class has no tag
)


def _union() -> object:
    union: object = _KINDS[0]
    for kind in _KINDS[1:]:
        union = union | kind
    return union


_encoder = msgspec.msgpack.Encoder(decimal_format="string")
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(_union())


def encode(message: Message) -> bytes:
    """Return the encoded message, with its version in front."""
    return bytes((VERSION,)) + _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Return the message from its bytes. Raise RpcError for another version and for bytes that are
    not a message.
    """
    if not data or data[0] != VERSION:
        found = data[0] if data else "nothing"
        raise RpcError(
            f"A control message of protocol version {found} arrived, this process speaks "
            f"{VERSION}: all processes of a cluster must run the same version of tidegate."
        )
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.DecodeError as error:
        raise RpcError(f"A control message cannot be read: {clause(error)}.") from error
