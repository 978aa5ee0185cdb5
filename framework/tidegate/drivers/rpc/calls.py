"""The handling of a call, independent of its transport: gRPC (`channel`) or a simulated network.

The module is pure. It decodes and encodes messages, and makes the errors that a caller gets if no
reply comes.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from tidegate.errors import RpcError, TidegateError
from tidegate.ports.rpc import Handler
from tidegate.protocol import codec
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import Failed, Message

NOT_REACHABLE: Final = "no process answers there (it is gone or not yet up)"

_log = logging.getLogger(__name__)


def handle_call(handler: Handler, data: bytes) -> bytes:
    """Decode a message, handle it, and return the encoded reply. If the handler raises an error,
    return the encoded error. Runs in a thread of the server.
    """
    try:
        reply: Message = handler(codec.decode(data))
        return codec.encode(reply)
    except TidegateError as error:
        return codec.encode(Failed(error=ErrorReport.of(error)))
    except Exception as error:  # noqa: BLE001  # a bug: reported to the caller, and logged here
        _log.exception("a handler failed")
        return codec.encode(Failed(error=ErrorReport.of(error)))


def decode_reply(data: bytes) -> Any:
    """Return the reply that `handle_call` encoded, or raise the error of the handler."""
    reply = codec.decode(data)
    if isinstance(reply, Failed):
        raise reply.error.exception()
    return reply


def timeout_reason(timeout_s: float) -> str:
    """Return the reason for a reply that took too long."""
    return f"no reply within {timeout_s:g} s"


def failed_error(message: object, address: str, why: str) -> RpcError:
    """Return the error for a call without a reply. The message may have arrived."""
    return RpcError(f"{type(message).__name__} to {address} failed: {why}.")


def not_sent_error(message: object, address: str) -> RpcError:
    """Return the error for a call after the client was closed."""
    return RpcError(f"{type(message).__name__} to {address} was not sent: its connection is shut.")
