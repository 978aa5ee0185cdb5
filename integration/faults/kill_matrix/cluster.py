"""Starts brokers to attack.

There are three brokers, with three replicas, two of which must be in sync for a write. They detect
the death of a broker quickly.

`Brokers` starts them as processes that belong to this one. Test clients and the brokers themselves
use the plain listener, which no fault affects. Slots have a listener of their own, and so have
JobMasters. The advertised addresses of these listeners are proxies of a `Network`. So the network
between one of these roles and all brokers can fail while all other connections keep working.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka.admin import AdminClient

from integration.faults.kill_matrix.mains import KAFKA
from integration.faults.kill_matrix.proxy import HOST, Network
from integration.faults.kill_matrix.switchboard import Link
from tidegate.drivers.kafka.broker_config import NodePorts
from tidegate.drivers.kafka.embedded import EmbeddedKafka

NODES: Final = 3
PARTIES: Final = ("slot", "jobmaster")
STATE_TOPIC: Final = "__transaction_state"
START_S_MAX: Final = 300.0
"""Seconds for the start of the brokers. Three at once take 5 s on a quiet machine. No fault is
measured by this limit.
"""
WHOLE_S_MAX: Final = 180.0
"""Seconds within which a restarted broker must have caught up."""
STOP_S_MAX: Final = 60.0
POLL_S: Final = 0.1
SETTINGS: Final = {
    "unclean.leader.election.enable": "false",
    "replica.lag.time.max.ms": "5000",  # not 30 s: a hanging follower must not hold up writers
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}


class Brokers:
    """A cluster of brokers, as a context manager."""

    def __init__(
        self, version: str, folder: Path, network: Network | None = None, *, nodes: int = NODES
    ) -> None:
        """Start the brokers, and return when every replica is in sync.

        Without a `network`, all processes use the plain listener.
        """
        self._network, self._nodes = network, nodes
        self.links = {party: Link(network) for party in PARTIES} if network else {}
        """Links between all slots, or all JobMasters, and all brokers."""
        self._ways: dict[str, dict[int, str]] = {party: {} for party in PARTIES}
        self.kafka = EmbeddedKafka.start(
            version,
            directory=folder,
            nodes=nodes,
            owned=True,
            properties=self._properties,
            timeout_s=START_S_MAX,
        )
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self.until_whole()

    @property
    def bootstrap(self) -> str:
        """Bootstrap servers of the plain listener."""
        return self.kafka.bootstrap

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that lead slots and JobMasters to their listeners."""
        return {
            KAFKA + party.upper(): ",".join(ways.values())
            for party, ways in self._ways.items()
            if ways
        }

    def _properties(self, node: int, ports: Sequence[NodePorts]) -> Mapping[str, str]:
        if self._network is None:
            return SETTINGS
        plain = f"PLAINTEXT://{HOST}:{ports[node].client}"
        control = f"CONTROLLER://{HOST}:{ports[node].controller}"
        own = {party: f"{HOST}:{_free_port()}" for party in PARTIES}
        for party, address in own.items():
            self._ways[party][node] = self.links[party].proxy_address(address)
        listeners = [f"{party.upper()}://{address}" for party, address in own.items()]
        advertised = [f"{party.upper()}://{self._ways[party][node]}" for party in PARTIES]
        names = [party.upper() for party in PARTIES]
        return {
            **SETTINGS,
            "listeners": ",".join([plain, control, *listeners]),
            "advertised.listeners": ",".join([plain, *advertised]),
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("CONTROLLER", "PLAINTEXT", *names)
            ),
        }

    # --- attacks --------------------------------------------------------------------------------

    def kill(self, *nodes: int) -> None:
        """Kill these nodes with SIGKILL. The first node is 0."""
        for node in nodes:
            self.kafka.kill(node)

    def stop(self, node: int) -> None:
        """Stop a node with SIGTERM, as an operator does. The broker first hands over its
        leaderships.
        """
        os.kill(self.kafka.pids[node], signal.SIGTERM)
        self._until(lambda: not self.kafka.alive[node], f"node {node} ends", STOP_S_MAX)

    def start(self, *nodes: int) -> None:
        """Restart these nodes on their data, and wait until all replicas are in sync."""
        self.kafka.restart(*nodes, timeout_s=START_S_MAX)
        self.until_whole()

    def leaders(self, topics: Iterable[str]) -> set[int]:
        """Return the nodes that lead a partition of these topics."""
        return {
            partition.leader - 1
            for topic in topics
            for partition in self._described(topic).values()
        }

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition."""
        return int(self._described(topic)[partition].leader) - 1

    def coordinator(self, transactional_id: str) -> int:
        """Return the node that coordinates the transactions of a transactional id."""
        partitions = self._described(STATE_TOPIC)
        return int(partitions[_java_hash(transactional_id) % len(partitions)].leader) - 1

    def until_whole(self) -> None:
        """Wait until every replica of every partition is in sync, and each has a leader."""

        def whole() -> bool:
            topics = self._admin.list_topics(timeout=10).topics.values()
            partitions = [each for topic in topics for each in topic.partitions.values()]
            return all(len(each.isrs) == self._nodes and each.leader > 0 for each in partitions)

        self._until(whole, "every replica is in sync", WHOLE_S_MAX)

    def _described(self, topic: str) -> dict[int, Any]:
        found: dict[int, Any] = {}

        def led() -> bool:
            partitions = self._admin.list_topics(topic, timeout=10).topics[topic].partitions
            found.update(partitions)
            return bool(partitions) and all(each.leader > 0 for each in partitions.values())

        self._until(led, f"every partition of {topic} has a leader", WHOLE_S_MAX)
        return found

    def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                if condition():
                    return
            except Exception as error:  # noqa: BLE001  # from the client: no broker answers
                what = f"{what} ({error})" if "(" not in what else what
            if time.monotonic() > end_s:
                raise TimeoutError(f"This did not happen within {timeout_s:g} s: {what}.")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Stop the brokers."""
        self.kafka.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as held:
        port: int = held.getsockname()[1]
        return port


def _java_hash(text: str) -> int:
    """Return Kafka's `Utils.abs(text.hashCode())`, which gives the partition of the state topic for
    an id.
    """
    value = 0
    for unit in text.encode("utf-16-be")[1::2]:  # ids are ASCII
        value = (31 * value + unit) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
