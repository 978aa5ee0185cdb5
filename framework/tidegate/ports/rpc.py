"""Control messages between processes: one call, one reply. Driver: gRPC with generic handlers.

A call without a reply may have been handled, or may be handled later. Only the caller knows whether
it may repeat the call, so this port never does. Calls do not wait for each other, and two calls
at the same time have no order. Messages are copied: the two ends share no object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[Any], Any]
"""A function from a message of `protocol` to a reply of `protocol`. It runs in a thread of the
server. If it raises a TidegateError, the caller gets an error of the same class. Any other
exception becomes the error of `errors.from_foreign`: an InternalError, unless the operating
system failed. The server continues.
"""


class RpcServer(Protocol):
    """A listening endpoint."""

    @property
    def address(self) -> str:
        """The address for clients: `host:port` or `unix:PATH`."""
        ...

    def close(self) -> None:
        """Refuse further calls. A waiting caller gets RpcError soon. Idempotent."""
        ...


class RpcClient(Protocol):
    """A connection to one endpoint. Several threads may use it."""

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send a message and wait for the reply. RpcError if no reply comes in time. An error of
        the handler is raised here. TypeError, without a request, if the message cannot be encoded.
        """
        ...

    def close(self) -> None:
        """End present and later calls with RpcError. Idempotent."""
        ...


class Rpc(Protocol):
    """A maker of both ends."""

    def serve(self, handler: Handler, port: int = 0) -> RpcServer:
        """Listen at an address of this process that no other server has. Port 0 selects a free
        port. RpcError if the address cannot be used.
        """
        ...

    def connect(self, address: str) -> RpcClient:
        """Return a client of one address. The first call shows whether a server listens there."""
        ...
