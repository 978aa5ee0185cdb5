"""The configuration of a node of the embedded broker: its server.properties, and free ports.

Every node is both broker and controller, and listens on the loopback address only. The settings are
chosen for tests and trials (quick coordinators, small internal topics) and not for throughput. They
do not change Kafka's limits on transactions, because tidegate is tested against those limits.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.errors import UserError

HOST = "127.0.0.1"
REPLICAS_MAX = 3
DATA = "data"
"""The folder of a node's data, in the node's own folder."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of a node: for clients, and for the other controllers."""

    client: int
    controller: int


def server_properties(node: int, ports: Sequence[NodePorts], overrides: Mapping[str, str]) -> str:
    """Return the text of server.properties for `node` (from 0) of a cluster that listens on
    `ports`.

    Raises:
        UserError: an override contains a line break.
    """
    replicas = min(len(ports), REPLICAS_MAX)
    in_sync = max(1, replicas - 1)
    mine = ports[node]
    voters = ",".join(f"{n + 1}@{HOST}:{each.controller}" for n, each in enumerate(ports))
    settings = {
        "process.roles": "broker,controller",
        "node.id": node + 1,
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{HOST}:{mine.client},CONTROLLER://{HOST}:{mine.controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{mine.client}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        # Relative to the working folder of the process, which is the node's own. Kafka would cut
        # an absolute path at each comma of a folder's name, and would strip the spaces around it.
        "log.dirs": DATA,
        # A missing topic is an error that tidegate must report; automatic creation would hide it.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 4,
        "group.initial.rebalance.delay.ms": 0,
        # A killed broker can register again only after its session has ended, so keep it short.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,  # default 128 MiB: half of the heap
    } | dict(overrides)
    for key, value in settings.items():
        if "\n" in f"{key}{value}":
            message = f"The broker setting {key!r} holds a line break; a setting is one line."
            raise UserError(message)
    # In Java's properties format, a backslash starts an escape sequence.
    return "".join(
        f"{key}={str(value).replace(chr(92), chr(92) * 2)}\n" for key, value in settings.items()
    )


def refuse_unnameable(folder: Path, what: str, remedy: str) -> None:
    """Raise UserError if Java cannot name the absolute path `folder`.

    Java decodes the bytes of a path with the locale's encoding, which is UTF-8 here (see `java`).
    It would replace other bytes, and would then write into another folder.
    """
    try:
        os.fsencode(folder).decode()
    except UnicodeDecodeError:
        shown = os.fsencode(folder).decode(errors="backslashreplace")
        message = f"{what} {shown} has a name that is not UTF-8, which Java cannot use. {remedy}"
        raise UserError(message) from None


def bootstrap_servers(ports: Sequence[NodePorts]) -> str:
    """Return the `HOST:PORT` of every node, separated by commas."""
    return ",".join(f"{HOST}:{each.client}" for each in ports)


def choose_ports(nodes: int, wanted: Sequence[NodePorts] = ()) -> list[NodePorts]:
    """Return ports for each node that are free now. Use the `wanted` ports as far as they are free.

    All ports are held until all are known, so that no two are the same. Another process can still
    take a port before the broker binds it. The broker's log then shows that, and the caller chooses
    again.
    """
    numbers = [number for each in wanted[:nodes] for number in (each.client, each.controller)]
    numbers += [0] * (2 * nodes - len(numbers))
    held = [_hold(number) for number in numbers]
    chosen = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return [NodePorts(chosen[2 * n], chosen[2 * n + 1]) for n in range(nodes)]


def _hold(port: int) -> socket.socket:
    try:
        return socket.create_server((HOST, port))
    except OSError:
        if port == 0:
            raise
        return socket.create_server((HOST, 0))
