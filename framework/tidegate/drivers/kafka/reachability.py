"""The reason why no Kafka broker answers, for the error that a user reads.

librdkafka reports an unknown name, a refused connection and a listener with another protocol in the
same way: nothing answers. So the addresses are tried once more, without Kafka. This module decides
nothing. It is called after a request has failed, and takes a second for each address at most.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final

DEFAULT_PORT: Final = 9092
"""The port that librdkafka takes for an address without one."""

CONNECT_S: Final = 1.0
TRIED_MAX: Final = 3
"""The most addresses that are tried."""


def why_unreachable(servers: str, protocol: str) -> str:
    """Return sentences that say for each address what is wrong with it."""
    addresses = [each.strip() for each in servers.split(",") if each.strip()]
    if not addresses:
        return "kafka.bootstrap_servers is empty. Write HOST:PORT."
    reasons = [_reason(address, protocol) for address in addresses[:TRIED_MAX]]
    return " ".join(dict.fromkeys(reasons))


def names_unknown(servers: str) -> bool:
    """Return whether this machine knows none of the names of the addresses."""
    addresses = [each.strip() for each in servers.split(",") if each.strip()]
    return all(_resolved(*_split(address)[:2]) is None for address in addresses)


def _reason(address: str, protocol: str) -> str:
    host, port, has_port = _split(address)
    without = "" if has_port else f"{address} has no port, so {port} was tried. "
    if port < 0:
        return f"The port of {address} is not a number. Write HOST:PORT."
    found = _resolved(host, port)
    if found is None:
        return f"{without}The name {host!r} is unknown on this machine. Correct it."
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except ConnectionRefusedError:
        return (
            f"{without}{host}:{port} refuses connections: no process listens there. Start the "
            "broker, or correct the address."
        )
    except OSError as error:
        why = error.strerror or str(error)
        return f"{without}{host}:{port} cannot be reached ({why}). Check the address and firewalls."
    return (
        f"{without}{host}:{port} accepts connections, but does not answer as a broker with "
        f"security.protocol = {protocol}. Check that this is a listener of Kafka, that it has this "
        "protocol, and that it advertises an address that this machine can reach."
    )


def _split(address: str) -> tuple[str, int, bool]:
    """Return the host, the port and whether the address has a port. A port of -1 is not a number.

    An address may have a protocol in front, as in `SSL://host:9093`.
    """
    place = address.rpartition("://")[2]
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        return place.strip("[]"), DEFAULT_PORT, False
    number = int(port) if port.isascii() and port.isdigit() else -1
    return host.strip("[]"), number, True


def _resolved(host: str, port: int) -> object:
    try:
        return socket.getaddrinfo(host, max(port, 0), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return None


def protocol_of(settings: Mapping[str, str]) -> str:
    """Return the protocol that a client with these settings speaks."""
    return settings.get("security.protocol", "PLAINTEXT").upper()
