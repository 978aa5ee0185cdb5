"""How a process is reached: what it listens on, and under which name others know it.

The processes of a local cluster listen on Unix sockets in a folder that only their owner can reach.
Those of a session cluster may run on several hosts, so they listen on TCP; the address that they
bind (every interface of a container, for example) is often not the address that others dial.
`bootstrap` makes the `Network` of a process from its configuration and gives it to its children;
the drivers of RPC and exchange listen as it says. Opens one socket to ask for a route, and sends
nothing.
"""

from __future__ import annotations

import ipaddress
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
    socket_dir: str | None = None
    """Folder for the Unix sockets of a local cluster; None where processes listen on TCP."""

    @property
    def listens_on(self) -> str:
        """The name or address to bind."""
        return self.bind_host or self.host

    def advertised_address(self, port: int) -> str:
        """`host:port` as others dial it."""
        return f"{bracketed(self.host)}:{port}"

    @property
    def is_one_host(self) -> bool:
        """Whether all processes of the cluster run on this host, as this user."""
        return (self.host, self.bind_host) == (LOOPBACK.host, LOOPBACK.bind_host)


LOOPBACK: Final = Network()
"""Reached from this host alone."""


def bracketed(host: str) -> str:
    """The host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether a server that binds this name or address is reached from this host alone.

    RpcError for a name that cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RpcError(f"The host name {host!r} cannot be resolved: {error}.") from error
    return all(ipaddress.ip_address(str(each[4][0])).is_loopback for each in found)


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
