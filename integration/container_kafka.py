"""Kafka in containers, by testcontainers: the other backend of the broker fixtures.

`ContainerKafka` has the interface of `EmbeddedKafka` that tests use (`brokers.Kafka`), so that a
test runs on either. Every broker is a `DockerContainer` with Apache Kafka's own environment
interface (the KafkaContainer of testcontainers is made for another vendor's image). Its port on the
loopback address is chosen first and bound one to one: so it can be advertised before the start, and
a broker that was killed comes back under it.

What a killed test process leaves behind is removed when the next one starts its first cluster:
containers and networks carry its process number as a label. (The reaper of testcontainers would do
it at once, but it is one more image to pull, and is switched off unless asked for.)
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

from integration import engine
from integration.topics import await_brokers
from tidegate.drivers.kafka.broker_config import choose_ports

OWNER: Final = "tidegate.test.pid"
START_TIMEOUT_S = 120.0
GONE_TIMEOUT_S = 30.0
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class ContainerKafka:
    """A cluster of brokers, each a container; as a context manager it is removed at the end."""

    def __init__(self, version: str, containers: list[DockerContainer], ports: list[int]) -> None:
        """Not for tests: `start` makes one."""
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
        """SIGKILL, and wait until it is gone; its data stays."""
        if self.alive[node]:
            self._of(node).kill(signal.SIGKILL)
        end_s = time.monotonic() + GONE_TIMEOUT_S
        while self.alive[node]:
            if time.monotonic() > end_s:
                raise TimeoutError(f"the container of broker {node + 1} outlives SIGKILL")
            time.sleep(0.05)

    def restart(self, node: int = 0) -> None:
        """Start a node again on its data and port, ending it first if it runs."""
        self.kill(node)
        self._of(node).start()
        await_brokers(self.bootstrap, sum(self.alive), START_TIMEOUT_S)

    def freeze(self, node: int = 0) -> None:
        """SIGSTOP. (`docker pause` fails now and then on older kernels.)"""
        self._of(node).kill(signal.SIGSTOP)

    def thaw(self, node: int = 0) -> None:
        """SIGCONT."""
        self._of(node).kill(signal.SIGCONT)

    def stop(self) -> None:
        """Remove everything; again does nothing."""
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
    """server.properties of a node, as the embedded broker's: for tests, not for throughput."""
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
    """The environment variable of a broker setting, by apache/kafka's rule backwards."""
    return "KAFKA_" + key.translate({ord("-"): "___", ord("_"): "__", ord("."): "_"}).upper()


def remove_orphans() -> None:
    """Remove what test processes of this machine have left that do not live any more."""
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
    """Force: a container that was killed cannot be stopped in order."""
    container = broker.get_wrapped_container()
    if container is not None:
        with contextlib.suppress(NotFound):
            container.remove(force=True, v=True)
