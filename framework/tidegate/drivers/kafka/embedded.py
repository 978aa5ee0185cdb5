"""Apache Kafka itself, without Docker or an installed Java, for trials, tests and the demo.

`EmbeddedKafka.start` starts a KRaft cluster of one or more nodes on the loopback address. It uses
the locked jars (`jars`) and the pinned runtime (`java`), and returns when the cluster answers
(`ready`). The cluster is the real server and not an imitation. It is not meant for production. The
command `tidegate kafka` uses this module for a permanent broker; the demo and the integration tests
use it for a broker that dies with them.

A cluster is stored in its directory:

    cluster.json        version, ports, cluster id: a start on the same directory keeps all three
    lock                held while a process starts the cluster
    <node>/             server.properties, data/, log, log.previous, and pid while it runs;
                        the working folder of the node's process

Invariant: a directory is never formatted twice, and two processes never start it at the same time.
Each start uses the same ports again, unless another process has taken them.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

import msgspec

from tidegate.drivers.kafka.broker_config import (
    DATA,
    NodePorts,
    bootstrap_servers,
    choose_ports,
    refuse_unnameable,
    server_properties,
)
from tidegate.drivers.kafka.broker_process import BrokerProcess
from tidegate.drivers.kafka.jars import VERSIONS, Report
from tidegate.drivers.kafka.java import HEAP_MIB, Java, find_java, java_environment, keep_archive
from tidegate.drivers.kafka.ready import wait_ready
from tidegate.errors import KafkaError, UserError, check
from tidegate.private_files import make_private_folder

START_TIMEOUT_S = 600.0
"""The longest time in seconds until a cluster is ready. A start takes 1.0 to 4 s on an idle
machine, and more than 90 s on a very busy one.
"""
STALL_TIMEOUT_S = 90.0
"""The time in seconds after which a start fails if its processes have used no processor time."""
WAIT_REPORTED_S = 10.0
"""The time in seconds between two reports of a start that lasts."""
STOP_TIMEOUT_S = 30.0  # a stop takes 0.4 s; 2 s if it writes the archive; 5 s for three nodes
STARTS_MAX = 3  # a port may be taken between the choice and the broker's bind, rarely twice
LOG_LINES_SHOWN = 15
PROPERTIES, RECORDING = "server.properties", "classes.jsa"
"""Files in the folder of a node. Java gets their names only, and works in this folder: the path may
have characters that mean something on its command line or in its settings.
"""
NODES_MAX = 9

Properties = Mapping[str, str] | Callable[[int, Sequence[NodePorts]], Mapping[str, str]]
"""The settings of every node, or a function that returns the settings of a node. Its arguments are
the node (from 0) and the ports of all nodes.
"""

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `cluster.json`."""

    version: str
    cluster_id: str
    ports: list[NodePorts]
    archive: Path
    """The path of the class-data archive that the first node may write at its exit."""


class _PortTakenError(Exception):
    """Another process has taken a port before the broker; the caller chooses again."""


class EmbeddedKafka:
    """A cluster of Kafka that runs on this machine.

    As a context manager, it stops the cluster at the end of the block. The data stays in the
    directory.
    """

    def __init__(
        self, directory: Path, cluster: ClusterFile, processes: list[BrokerProcess | None]
    ) -> None:
        """Make the object; users call `start` or `attach` instead."""
        self.directory = directory
        self._cluster = cluster
        self._processes = processes
        self._java: Java | None = None
        self._owned = False
        self._report: Report = _no_report

    @classmethod
    def start(
        cls,
        version: str = VERSIONS[0],
        *,
        directory: Path,
        nodes: int = 1,
        owned: bool = False,
        properties: Properties = NO_PROPERTIES,
        heap_mib: int = HEAP_MIB,
        report: Report | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> Self:
        """Start a cluster with its data in `directory` and return when it is ready.

        Args:
            version: the version of Kafka, one that has a lock (see `jars.VERSIONS`).
            directory: made if it does not exist. Data of an earlier start in it is used.
            nodes: the number of nodes; each is broker and controller.
            owned: whether the brokers die with this process, even if it is killed (on Linux).
            properties: added to each node's server.properties, or replace its defaults. A function
                is called again if a port was taken and other ports are tried.
            heap_mib: the maximum heap of each broker, until another process attaches to the
                cluster and starts brokers again.
            report: called with short lines about the progress of a download, and of a start that
                lasts.
            timeout_s: the maximum time until the cluster is ready, in seconds.

        Raises:
            UserError: the extra `broker` is missing, the version is unknown, the directory has data
                of another version or number of nodes, its cluster already runs, or its name is not
                UTF-8.
            KafkaError: the cluster did not start; the message ends with the last lines of its log.
            ExternalError: a download failed.
        """
        if not 1 <= nodes <= NODES_MAX:
            message = f"A cluster of {nodes} nodes cannot be started: choose 1 to {NODES_MAX}."
            raise UserError(message)
        directory = directory.absolute()
        refuse_unnameable(directory, "The folder", "Start the broker in another folder.")
        java = find_java(version, report or _no_report, heap_mib)
        make_private_folder(directory)  # it holds the records of the topics
        with _locked(directory):
            known = _read_cluster(directory)
            _refuse_unfit(directory, known, version, nodes)
            if known is not None and any(_read_processes(directory, known)):
                message = (
                    f"A broker runs already on the data in {directory}, at"
                    f" {bootstrap_servers(known.ports)}. Use that one, or stop it first."
                )
                raise UserError(message)
            for _ in range(STARTS_MAX):
                known = ClusterFile(
                    version=version,
                    cluster_id=known.cluster_id if known else uuid.uuid4().hex[:22],
                    ports=choose_ports(nodes, known.ports if known else ()),
                    archive=java.kafka_archive,
                )
                cluster = cls(directory, known, [None] * nodes)
                cluster._java, cluster._owned = java, owned
                cluster._report = report or _no_report
                try:
                    cluster._boot(properties, timeout_s)
                except _PortTakenError:
                    continue
                return cluster
        message = (
            f"Kafka {version} did not start: {STARTS_MAX} times another process took one of its"
            " ports before it could. Try again."
        )
        raise KafkaError(message)

    @classmethod
    def attach(cls, directory: Path) -> Self | None:
        """Return the cluster of which at least one node runs on `directory`; None if no node
        runs.
        """
        directory = directory.absolute()
        cluster = _read_cluster(directory)
        if cluster is None:
            return None
        processes = _read_processes(directory, cluster)
        return cls(directory, cluster, processes) if any(processes) else None

    @property
    def version(self) -> str:
        return self._cluster.version

    @property
    def bootstrap(self) -> str:
        """The `HOST:PORT` of every node, separated by commas, as `bootstrap.servers` needs it."""
        return bootstrap_servers(self._cluster.ports)

    @property
    def pids(self) -> list[int]:
        """The pid of each node's last process, even if the process has ended (0: unknown)."""
        return [each.pid if each else 0 for each in self._processes]

    @property
    def alive(self) -> list[bool]:
        """Whether each node's process runs."""
        return [each is not None and each.alive() for each in self._processes]

    def log(self, node: int = 0) -> Path:
        """Return the path of the file with a node's output."""
        return self._home(node) / "log"

    def stop(self) -> None:
        """Stop every node normally, and kill a node that takes too long. Stopping a stopped cluster
        does nothing.
        """
        for each in self._processes:
            if each is not None:
                each.signal(signal.SIGTERM)
        for node, each in enumerate(self._processes):
            if each is not None and not each.wait(STOP_TIMEOUT_S):
                each.signal(signal.SIGKILL)
                each.wait(STOP_TIMEOUT_S)
            self._pid_file(node).unlink(missing_ok=True)
        keep_archive(self._recording(0), self._cluster.archive)

    def kill(self, node: int = 0) -> None:
        """End a node's process by SIGKILL and wait until it is gone. Its data stays."""
        process = self._processes[node]
        if process is not None:
            process.signal(signal.SIGKILL)
            check(process.wait(STOP_TIMEOUT_S), f"process {process.pid} outlived SIGKILL")

    def restart(
        self,
        *nodes: int,
        timeout_s: float = START_TIMEOUT_S,
        report: Report | None = None,
        warm: bool = True,
    ) -> None:
        """Start nodes again on their data and ports, after killing those that run. Without
        arguments, restart the first node. `report` gets the progress, as in `start`.

        The nodes start together, because no single node gets ready while most nodes are down.
        Without `warm`, do not wait for coordinators: their partitions may have no leader.

        Raises:
            KafkaError: a node did not start; the message ends with the last lines of its log.
        """
        chosen = nodes or (0,)
        self._report = report or self._report
        for node in chosen:
            self.kill(node)
        with _locked(self.directory):
            for node in chosen:
                self._launch(node)
            try:
                self._wait_ready(timeout_s, warm=warm)
            except _PortTakenError:
                raise self._not_started(chosen[0], "a port is taken") from None

    def upgrade(self, node: int, version: str, timeout_s: float = START_TIMEOUT_S) -> None:
        """Stop a node normally and start it on its data with another version of Kafka.

        This is one step of a rolling upgrade. Nodes that are restarted later also start with that
        version.

        Raises:
            UserError: the version is unknown.
            KafkaError: the node did not start; the message ends with the last lines of its log.
        """
        java = find_java(version, lambda _: None, self._runtime().heap_mib)
        process = self._processes[node]
        if process is not None:
            process.signal(signal.SIGTERM)
            process.wait(STOP_TIMEOUT_S)
        self._java = java
        self._cluster = msgspec.structs.replace(
            self._cluster, version=version, archive=java.kafka_archive
        )
        _write_cluster(self.directory, self._cluster)
        self.restart(node, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _boot(self, properties: Properties, timeout_s: float) -> None:
        _write_cluster(self.directory, self._cluster)
        nodes = range(len(self._processes))
        for node in nodes:
            self._home(node).mkdir(exist_ok=True)
            ports = self._cluster.ports
            added = properties(node, ports) if callable(properties) else properties
            text = server_properties(node, ports, added)
            (self._home(node) / PROPERTIES).write_text(text, encoding="utf-8")
        try:
            self._format()
            for node in nodes:
                self._launch(node)
            self._wait_ready(timeout_s)
        except BaseException:  # after any error, no node of the cluster may stay
            for node in nodes:
                self.kill(node)
                self._pid_file(node).unlink(missing_ok=True)
            raise

    def _format(self) -> None:
        running: dict[int, subprocess.Popen[bytes]] = {}
        for node in range(len(self._processes)):
            home = self._home(node)
            if (home / DATA / "meta.properties").exists():
                continue
            words = ("format", "-t", self._cluster.cluster_id, "-c", PROPERTIES)
            with self.log(node).open("wb") as log:
                running[node] = subprocess.Popen(
                    self._runtime().command("kafka.tools.StorageTool", *words),
                    cwd=home,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=java_environment(),
                )
        for tool in running.values():
            tool.wait()
        for node, tool in running.items():
            if tool.returncode != 0:
                raise self._not_started(
                    node, f"its data could not be formatted ({tool.returncode})"
                )

    def _launch(self, node: int) -> None:
        home = self._home(node)
        if self.log(node).exists():
            self.log(node).replace(home / "log.previous")
        record = Path(RECORDING) if node == 0 else None
        command = self._runtime().command("kafka.Kafka", PROPERTIES, record=record)
        process = BrokerProcess.launch(command, log=self.log(node), owned=self._owned)
        process.write(self._pid_file(node))
        self._processes[node] = process

    def _wait_ready(self, timeout_s: float, *, warm: bool = True) -> None:
        ports = [each.client for each in self._cluster.ports]
        waiting = [node for node, alive in enumerate(self.alive) if alive]
        begun = moved = reported = time.monotonic()
        used: list[int | None] = []

        def still_alive() -> None:
            nonlocal moved, reported, used
            for node in waiting:
                if not self.alive[node]:
                    if "Address already in use" in self._log_tail(node):
                        raise _PortTakenError
                    raise self._not_started(node, "its process has ended")
            now = time.monotonic()
            before, used = used, [self._cpu_ticks(node) for node in waiting]
            if None in used or used != before:
                moved = now
            elif now - moved > STALL_TIMEOUT_S:
                reason = f"its process has used no processor time for {STALL_TIMEOUT_S:.0f} s"
                raise self._not_started(waiting[0], reason)
            if now - reported > WAIT_REPORTED_S:
                reported = now
                self._report(self._waiting(waiting, now - begun))

        # If some nodes are dead, the running ones do not list all nodes, so only they are expected.
        asked = [ports[node] for node in waiting]
        unready = wait_ready(asked, warm=warm, timeout_s=timeout_s, still_alive=still_alive)
        if unready is not None:
            reason = f"it {unready.what} in {timeout_s:.0f} s"
            raise self._not_started(ports.index(unready.port), reason)

    def _cpu_ticks(self, node: int) -> int | None:
        process = self._processes[node]
        return None if process is None else process.cpu_ticks()

    def _waiting(self, nodes: Sequence[int], seconds: float) -> str:
        pids = ", ".join(str(self.pids[node]) for node in nodes)
        return (
            f"Kafka {self.version} is starting (pid {pids}) and has not answered for"
            f" {seconds:.0f} s. Its log is {self.log(nodes[0])}."
        )

    def _not_started(self, node: int, reason: str) -> KafkaError:
        which = f", node {node + 1}," if len(self._processes) > 1 else ""
        return KafkaError(
            f"Kafka {self.version}{which} did not start: {reason}."
            f" The last lines of its log, {self.log(node)}:\n{self._log_tail(node)}"
        )

    def _log_tail(self, node: int) -> str:
        try:
            text = self.log(node).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return "(there is no log)"
        return "\n".join(text.splitlines()[-LOG_LINES_SHOWN:]) or "(it is empty)"

    def _runtime(self) -> Java:
        if self._java is None:
            self._java = find_java(self.version, self._report)
        return self._java

    def _home(self, node: int) -> Path:
        return self.directory / str(node + 1)

    def _pid_file(self, node: int) -> Path:
        return self._home(node) / "pid"

    def _recording(self, node: int) -> Path:
        return self._home(node) / RECORDING


def wipe(directory: Path) -> None:
    """Delete a cluster with its data.

    Raises:
        UserError: the cluster runs, or a file cannot be deleted.
    """
    if EmbeddedKafka.attach(directory) is not None:
        message = f"The broker on the data in {directory} runs: stop it before deleting its data."
        raise UserError(message)
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except OSError as error:
        message = (
            f"The data in {directory} could not be deleted: {error.strerror} ({error.filename})."
            " Delete the rest by hand."
        )
        raise UserError(message) from error


def _no_report(_line: str) -> None:
    """Ignore a line of progress."""


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # The lock is released when its process ends, in whatever way.
    with (directory / "lock").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _refuse_unfit(directory: Path, known: ClusterFile | None, version: str, nodes: int) -> None:
    if known is None:
        return
    found = (known.version, len(known.ports))
    if found != (version, nodes):
        message = (
            f"The data in {directory} is of Kafka {found[0]} with {found[1]} node(s), and cannot be"
            f" used by Kafka {version} with {nodes}. Delete it (tidegate kafka down --wipe) or"
            " choose another directory."
        )
        raise UserError(message)


def _read_cluster(directory: Path) -> ClusterFile | None:
    path = directory / "cluster.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile, dec_hook=_decode_path)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        message = f"{path} is not what tidegate has written: {error}. Delete {directory}."
        raise UserError(message) from error


def _write_cluster(directory: Path, cluster: ClusterFile) -> None:
    aside = directory / "cluster.json.new"
    aside.write_bytes(msgspec.json.encode(cluster, enc_hook=str))
    aside.replace(directory / "cluster.json")


def _decode_path(kind: type, value: object) -> object:
    return kind(value)


def _read_processes(directory: Path, cluster: ClusterFile) -> list[BrokerProcess | None]:
    pid_files = (directory / str(node + 1) / "pid" for node in range(len(cluster.ports)))
    return [BrokerProcess.read(path) for path in pid_files]
