"""Control messages between processes: one call, one reply. Driver: gRPC with generic handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[[Any], Any]
"""Takes a message of `protocol`, returns a reply of `protocol`; runs in a thread of the server.
A TidegateError that it raises reaches the caller as an error of the same class."""


class RpcServer(Protocol):
    """A listening endpoint."""

    @property
    def address(self) -> str:
        """`host:port`, as others reach it."""
        ...

    def close(self) -> None: ...


class RpcClient(Protocol):
    """A connection to one endpoint; safe to use from several threads."""

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send and wait for the reply. RpcError when it does not come; else what the handler
        raised.
        """
        ...

    def close(self) -> None: ...


class Rpc(Protocol):
    """Makes both ends."""

    def serve(self, handler: Handler, host: str = "127.0.0.1") -> RpcServer: ...

    def connect(self, address: str) -> RpcClient: ...
