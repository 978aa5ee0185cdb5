"""Kafka in containers, with testcontainers: the second backend of the broker fixtures.

`ContainerKafka` has the same interface for tests as `EmbeddedKafka` (`brokers.Kafka`), so a test
can run on both. Every broker is a `DockerContainer` that Apache Kafka's own environment variables
configure. (The KafkaContainer of testcontainers is made for another vendor's image.) The port on
the loopback address is chosen before the start, and is the same inside the container. A broker can
therefore advertise it from the start, and has the same address after a kill and a restart.

A killed test process leaves containers and networks behind. The next test process removes them when
it starts its first cluster, because they carry the process id as a label. (The reaper of
testcontainers would remove them at once, but needs one more image, so it is off by default.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

os.environ.setdefault("TESTCONTAINERS_RYUK_DISABLED", "true")

from docker.errors import NotFound
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from integration.demo.topics import await_brokers
from integration.support import engine
from tidegate.drivers.kafka.broker_config import choose_ports

OWNER: Final = "tidegate.test.pid"
START_TIMEOUT_S = 120.0
GONE_TIMEOUT_S = 30.0
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class ContainerKafka:
    """A cluster of brokers, each in a container. A context manager, which removes it at the end."""

    def __init__(self, version: str, containers: list[DockerContainer], ports: list[int]) -> None:
        """Wrap containers that run. Tests call `start` instead."""
        self.version = version
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        self._containers = containers
        self._ports = ports
        self._cleanup = contextlib.ExitStack()

    @classmethod
    def start(
        cls, version: str, *, nodes: int = 1, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> Self:
        """Start a cluster and return when all of its brokers answer."""
        image = engine.kafka_image(version)
        remove_orphans()
        ports = [each.client for each in choose_ports(nodes)]
        owner = {OWNER: str(os.getpid())}
        with contextlib.ExitStack() as cleanup:
            network = cleanup.enter_context(Network(docker_network_kw={"labels": owner}))
            containers = []
            for node, port in enumerate(ports, 1):
                broker = DockerContainer(image)
                broker.with_network(network).with_network_aliases(f"kafka{node}")
                # `with_bind_ports` knows no address, and would publish on every interface.
                broker.ports[f"{port}/tcp"] = ("127.0.0.1", port)  # type: ignore[assignment]
                broker.with_kwargs(hostname=f"kafka{node}", labels=owner)
                for key, value in (settings(node, ports) | dict(properties)).items():
                    broker.with_env(variable(key), value)
                broker.with_env("KAFKA_HEAP_OPTS", "-Xmx256m -Xms128m")
                cleanup.callback(_remove, broker)
                broker.start()
                containers.append(broker)
            cluster = cls(version, containers, ports)
            await_brokers(cluster.bootstrap, nodes, START_TIMEOUT_S)
            cluster._cleanup = cleanup.pop_all()
        return cluster

    @property
    def alive(self) -> list[bool]:
        """Whether each node's container runs."""
        return [self._status(node) == "running" for node in range(len(self._containers))]

    def kill(self, node: int = 0) -> None:
        """Kill a node with SIGKILL, and wait until it has ended. Its data stays."""
        if self.alive[node]:
            self._of(node).kill(signal.SIGKILL)
        end_s = time.monotonic() + GONE_TIMEOUT_S
        while self.alive[node]:
            if time.monotonic() > end_s:
                raise TimeoutError(f"the container of broker {node + 1} outlives SIGKILL")
            time.sleep(0.05)

    def restart(self, node: int = 0) -> None:
        """Start a node again with its data and port. If it runs, kill it first."""
        self.kill(node)
        self._of(node).start()
        await_brokers(self.bootstrap, sum(self.alive), START_TIMEOUT_S)

    def freeze(self, node: int = 0) -> None:
        """Send SIGSTOP to a node. (`docker pause` sometimes fails on older kernels.)"""
        self._of(node).kill(signal.SIGSTOP)

    def thaw(self, node: int = 0) -> None:
        """Send SIGCONT to a node."""
        self._of(node).kill(signal.SIGCONT)

    def stop(self) -> None:
        """Remove all containers and the network. A second call does nothing."""
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _of(self, node: int) -> Any:
        return self._containers[node].get_wrapped_container()

    def _status(self, node: int) -> str:
        container = self._of(node)
        container.reload()
        return str(container.status)


def settings(node: int, ports: list[int]) -> dict[str, str]:
    """Return the server.properties of a node. Like the embedded broker's, they suit tests and not
    throughput.
    """
    replicas = str(min(len(ports), 3))
    in_sync = str(max(1, min(len(ports), 3) - 1))
    voters = ",".join(f"{number}@kafka{number}:9093" for number in range(1, len(ports) + 1))
    external = f"EXTERNAL://127.0.0.1:{ports[node - 1]}"
    return {
        "process.roles": "broker,controller",
        "node.id": str(node),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "INTERNAL",
        "listeners": f"INTERNAL://:9092,CONTROLLER://:9093,EXTERNAL://:{ports[node - 1]}",
        "advertised.listeners": f"INTERNAL://kafka{node}:9092,{external}",
        "listener.security.protocol.map": (
            "INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT,EXTERNAL:PLAINTEXT"
        ),
        "log.dirs": "/var/lib/kafka/data",
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "log.cleaner.dedupe.buffer.size": str(8 << 20),
    }


def variable(key: str) -> str:
    """Return the environment variable of a broker setting: the inverse of apache/kafka's rule."""
    return "KAFKA_" + key.translate({ord("-"): "___", ord("_"): "__", ord("."): "_"}).upper()


def remove_orphans() -> None:
    """Remove the containers and networks of test processes of this machine that have ended."""
    client = engine.engine()
    for container in client.containers.list(all=True, filters={"label": OWNER}):
        if not _lives(container.labels[OWNER]):
            container.remove(force=True, v=True)
    for network in client.networks.list(filters={"label": OWNER}):
        if not _lives(network.attrs["Labels"][OWNER]):
            network.remove()


def _lives(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _remove(broker: DockerContainer) -> None:
    """Remove a container by force, because a killed container cannot be stopped in order."""
    container = broker.get_wrapped_container()
    if container is not None:
        with contextlib.suppress(NotFound):
            container.remove(force=True, v=True)
