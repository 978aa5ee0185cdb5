"""Control messages between processes: one call, one reply. Driver: gRPC with generic handlers.

A call whose reply does not come may have been handled, or may yet be: only its caller knows whether
it may be repeated, and nothing here repeats it. Calls do not wait for each other, and no order
holds between two that are under way. What goes over is a copy: the ends share nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[Any], Any]
"""Takes a message of `protocol`, returns a reply of `protocol`; runs in a thread of the server.
A TidegateError that it raises reaches the caller as an error of the same class, anything else as
`errors.from_foreign` has it: an InternalError, unless the operating system failed. The server goes
on."""


class RpcServer(Protocol):
    """A listening endpoint."""

    @property
    def address(self) -> str:
        """`host:port` or `unix:PATH`, as others reach it."""
        ...

    def close(self) -> None:
        """Take no more calls; who waits for a reply gets RpcError soon. Idempotent."""
        ...


class RpcClient(Protocol):
    """A connection to one endpoint; safe to use from several threads."""

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send and wait for the reply. RpcError when it does not come; else what the handler
        raised. TypeError, and nothing is sent, for what cannot be encoded.
        """
        ...

    def close(self) -> None:
        """Calls under way, and those that come later, end with RpcError. Idempotent."""
        ...


class Rpc(Protocol):
    """Makes both ends."""

    def serve(self, handler: Handler, port: int = 0) -> RpcServer:
        """Listen where this process is reached, at an address that no other server has; port 0 is a
        free one. RpcError where that is not possible.
        """
        ...

    def connect(self, address: str) -> RpcClient:
        """A client of one address; finds out at the first call whether anybody is there."""
        ...
