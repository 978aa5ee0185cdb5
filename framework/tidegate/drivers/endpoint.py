"""The network settings of a process: the address that it binds, and the address that others dial.

The processes of a local cluster listen on Unix sockets in a folder that only their owner can reach.
The processes of a session cluster may run on several hosts, so they listen on TCP. The address that
they bind (every interface of a container, for example) is often not the address that others dial.
`bootstrap` makes the `Endpoint` of a process from its configuration and gives it to its children.
The drivers of RPC and exchange listen as the `Endpoint` says. This module opens one socket to look
up a route, and sends nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final

from tidegate.errors import RpcError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """The addresses at which a process listens and is reached."""

    host: str = "127.0.0.1"
    """The name or address that others dial."""
    bind_host: str | None = None
    """The name or address to bind; None means `host` itself."""
    socket_dir: str | None = None
    """The folder for the Unix sockets of a local cluster; None if the processes listen on TCP."""

    @property
    def bind_address(self) -> str:
        """Return the name or address to bind."""
        return self.bind_host or self.host

    def advertised_address(self, port: int) -> str:
        """Return the `host:port` that others dial."""
        return f"{bracketed(self.host)}:{port}"

    @property
    def is_one_host(self) -> bool:
        """Return whether all processes of the cluster run on this host, as this user."""
        return (self.host, self.bind_host) == (LOOPBACK.host, LOOPBACK.bind_host)


LOOPBACK: Final = Endpoint()
"""The endpoint of a process that only this host can reach."""


def bracketed(host: str) -> str:
    """Return the host as it is written before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach a server that binds this name or address.

    RpcError if the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise RpcError(f"The host name {host!r} cannot be resolved: {error}.") from error
    return all(ipaddress.ip_address(str(each[4][0])).is_loopback for each in found)


def own_address_towards(host: str, port: int) -> str:
    """Return the address of this host that it uses to reach another host; RpcError if there is no
    route.

    Connecting a datagram socket looks up the route and sends nothing.
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
