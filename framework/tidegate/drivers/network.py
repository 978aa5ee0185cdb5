"""How a process is reached: what it listens on, and under which name others know it.

The processes of a local cluster are on this host and nobody else's matter: they listen on the
loopback address. Those of a standing cluster may be on several hosts; then what one listens on
(every interface of a container, say) is seldom what others must dial. `bootstrap` makes the
`Network` of a process from its configuration and hands it to its children; the drivers of RPC and
exchange listen by it. Opens one socket to ask for a route, and sends nothing.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from tidegate.errors import RpcError


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where a process listens and how it is reached."""

    host: str = "127.0.0.1"
    """The name or address that others dial."""
    bind_host: str | None = None
    """What it listens on; None is `host` itself."""

    @property
    def listens_on(self) -> str:
        """The name or address to bind."""
        return self.bind_host or self.host

    def shown(self, port: int) -> str:
        """`host:port` as others dial it."""
        return f"{bracketed(self.host)}:{port}"


THIS_HOST: Final = Network()
"""Reached from this host alone."""


def bracketed(host: str) -> str:
    """The host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def own_address_towards(host: str, port: int) -> str:
    """The address from which this host reaches another; RpcError where there is no way there.

    A datagram socket that is connected sends nothing, but has looked up the route.
    """
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RpcError(f"There is no way to {host}:{port}: {error}.") from error
