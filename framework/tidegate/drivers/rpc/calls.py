"""What a call is, whatever carries its bytes: gRPC (`channel`), or a simulated network.

Pure: bytes in, bytes out, and the words in which a caller hears that no reply came.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from tidegate.errors import RpcError, TidegateError
from tidegate.ports.rpc import Handler
from tidegate.protocol import codec
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import Failed, Message

NOBODY: Final = "nobody answers there (the process is gone or not yet up)"

_log = logging.getLogger(__name__)


def handle_call(handler: Handler, data: bytes) -> bytes:
    """Decode, handle, encode the reply, or what the handler raised; runs in the server's thread."""
    try:
        reply: Message = handler(codec.decode(data))
        return codec.encode(reply)
    except TidegateError as error:
        return codec.encode(Failed(error=ErrorReport.of(error)))
    except Exception as error:  # noqa: BLE001  # a bug: reported to the caller, and logged here
        _log.exception("a handler failed")
        return codec.encode(Failed(error=ErrorReport.of(error)))


def decode_reply(data: bytes) -> Any:
    """The reply that `handle_call` gave; raises what the handler raised."""
    reply = codec.decode(data)
    if isinstance(reply, Failed):
        raise reply.error.exception()
    return reply


def timeout_reason(timeout_s: float) -> str:
    """Why no reply came: it took too long."""
    return f"no reply within {timeout_s:g} s"


def failed(message: object, address: str, why: str) -> RpcError:
    """No reply came, though the message may have arrived."""
    return RpcError(f"{type(message).__name__} to {address} failed: {why}.")


def not_sent(message: object, address: str) -> RpcError:
    """The client was closed before."""
    return RpcError(f"{type(message).__name__} to {address} was not sent: its connection is shut.")
