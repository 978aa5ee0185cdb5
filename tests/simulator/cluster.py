"""A whole simulated cluster: the real main functions of all processes, and their fake drivers.

This module does for simulated processes what `bootstrap` does for real ones: it passes the fakes to
the control plane and the data plane. The code of the processes, state machines, tasks and
procedures is the unchanged code of the product. Each process has its own clock, random numbers and
threads. All processes share one network, one Kafka cluster and one storage.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.simulator.blobs import MemoryBlobs, SimBlobStore
from tests.simulator.exchange import SimExchange
from tests.simulator.faults import RequestFaults
from tests.simulator.invariants import ProtocolChecker
from tests.simulator.kafka.cluster import FakeKafka, FakeProcess
from tests.simulator.kafka.faults import Call, Verdict
from tests.simulator.kafka.log import PartitionLog
from tests.simulator.kafka.reader import FakeReader
from tests.simulator.mounts import Mounts, OtherClusterFaults, ProcessFilter, nobody
from tests.simulator.network import Network
from tests.simulator.oracle import Oracle
from tests.simulator.patches import Salts
from tests.simulator.processes import Announce, Role, SimProcesses, SlotMain, StartDurations
from tests.simulator.rpc import RpcNetwork
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.session_cluster import HOST, serve_forever
from tests.simulator.threads import EPOCH_MS, SimClock, SimCurrentProcess, SimEntropy, SimThreads
from tidegate.config import Config
from tidegate.controlplane.jobmanager.service import run_jobmanager
from tidegate.controlplane.jobmaster.process import run_jobmaster
from tidegate.controlplane.taskmanager.service import run_taskmanager
from tidegate.drivers.memory.store import MemoryStore
from tidegate.drivers.transaction_coordinators import make_transaction_coordinator
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId, TransactionalId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.clock import Clock
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.ports.entropy import Entropy
from tidegate.ports.exchange import Exchange
from tidegate.ports.kafka import PartitionReader, Producer, TransactionAdmin
from tidegate.ports.kv import KeyValueStore
from tidegate.ports.processes import CurrentProcess, ExitStatus
from tidegate.ports.rpc import Rpc
from tidegate.ports.threads import Threads
from tidegate.ports.transactions import SinkOptions, TransactionCoordinator
from tidegate.protocol.messages import StartSlot
from tidegate.slot.main import run_slot
from tidegate.stream_elements import TopicPartition

STORAGE = "sim://checkpoints"
ELSEWHERE: Final = "elsewhere"
"""Address and id of a Kafka cluster that is not the job's."""


class BrokerClock:
    """The clock of the brokers. It is exact, and a call does not end the turn of a thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def monotonic(self) -> float:
        return self._scheduler.now

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._scheduler.now * 1000)

    def sleep(self, seconds: float) -> None:
        self._scheduler.wait(seconds)


class SimCluster:
    """The state that survives the processes, and the drivers of the processes."""

    def __init__(
        self,
        scheduler: Scheduler,
        request_faults: RequestFaults,
        oracle: Oracle,
        *,
        start_durations: StartDurations | None = None,
    ) -> None:
        self.scheduler, self.request_faults = scheduler, request_faults
        self._start_durations = start_durations
        self.blobs = MemoryBlobs()
        self.network = Network(scheduler, has_own_host=lambda process: host_of(process) is process)
        self.rpc_network = RpcNetwork(self.network)
        self.kafka = FakeKafka(BrokerClock(scheduler), faults=self, on_marker=self._on_marker)
        self.watch = ProtocolChecker(scheduler, self.blobs, self.kafka, oracle)
        self._readers: list[tuple[SimProcess, FakeReader]] = []
        self._clients: dict[str, tuple[SimProcess, FakeProcess]] = {}
        """Kafka clients of the processes, by the name that the hook of faults gets."""
        self.mounts = Mounts(self.blobs)
        self.other_kafka = FakeKafka(
            BrokerClock(scheduler),
            faults=OtherClusterFaults(self.watch.record_violation),
            cluster_id=ELSEWHERE,
        )
        """A Kafka cluster that is not the job's."""
        self._misdirected: ProcessFilter = nobody
        self.salts = Salts(scheduler)
        self._rng = scheduler.random_for("cluster")

    # --- what processes run (`processes.Programs`) ------------------------------------------------

    def processes(
        self,
        owner: SimProcess,
        cluster: str,
        config: Config,
        *,
        session_cluster: bool = False,
        storage: str = "",
    ) -> SimProcesses:
        """Return the `ports.processes` of a process of a cluster.

        `storage` is the id of its storage, if the process that starts the cluster has read it.
        """
        programs = Programs(self, cluster, config, session_cluster=session_cluster, storage=storage)
        return SimProcesses(owner, programs, self._start_durations, self.request_faults.of_start)

    # --- drivers --------------------------------------------------------------------------------

    def drivers(self, process: SimProcess) -> SimDrivers:
        """Return the drivers of a process that begins."""
        return SimDrivers(self, process)

    def kafka_of(self, process: SimProcess, address: str = "") -> FakeProcess:
        """Return the Kafka clients of a process, for the cluster that an address leads to."""
        is_other = address == ELSEWHERE or self._misdirected(process)
        name = f"{process.name}#{process.pid}{'@' + ELSEWHERE if is_other else ''}"
        known = self._clients.get(name)
        if known is not None:
            return known[1]
        kafka = self.other_kafka if is_other else self.kafka
        made = kafka.process(name, SimClock(process))
        self._clients[name] = process, made
        process.on_exit.append(lambda _status: made.kill(drop_in_flight=self._rng.random() < 0.5))
        return made

    def reads(self, process: SimProcess, reader: FakeReader) -> None:
        """Record that a process has made a reader."""
        self._readers.append((process, reader))

    def read_positions(self, attempt: int) -> dict[TopicPartition, int]:
        """Return the positions of the readers of an attempt, by partition."""
        self._readers = [(process, reader) for process, reader in self._readers if process.alive]
        of_attempt = [
            reader.read_positions
            for process, reader in self._readers
            if self.watch.attempt_of(process) == attempt
        ]
        return {
            topic_partition: at
            for read_positions in of_attempt
            for topic_partition, at in read_positions.items()
        }

    def _on_marker(self, log: PartitionLog) -> None:
        self.watch.on_marker(log)

    def decide(self, call: Call) -> Verdict:
        """Check the protocol rules for a request, then return the verdict drawn from the rates.

        This is the method of `kafka.faults.Faults`.
        """
        known = self._clients.get(call.process)
        self.watch.check_request(call, None if known is None else known[0])
        return self.request_faults.decide(call)

    # --- what processes see ---------------------------------------------------------------------

    def mount_other(self, wrong: MemoryBlobs, selects: ProcessFilter) -> None:
        """Show another storage to some processes. JobMasters and slots must not write to it."""

        def written(process: SimProcess, path: str) -> None:
            if kind_of(process) in {"jobmaster", "slot"} and wrong.identity:
                self.watch.record_violation(f"{process.name} writes {path} to another storage")

        wrong.written = written
        self.mounts.mount(wrong, selects)

    def kill_orphans(self) -> None:
        """Kill every process whose user process is gone, even if it is frozen."""
        for process in self.scheduler.processes:
            root = process
            while root.parent is not None:
                root = root.parent
            if process.alive and not root.alive:
                process.kill()

    def misdirect(self, selects: ProcessFilter) -> None:
        """Let the addresses of the brokers lead some processes to another Kafka cluster."""
        self._misdirected = selects

    def correct_addresses(self) -> None:
        """Let every address lead to the job's Kafka cluster again."""
        self._misdirected = nobody

    # --- faults ---------------------------------------------------------------------------------

    def freeze(self, process: SimProcess) -> None:
        """Freeze a process, including the threads of its Kafka clients, as SIGSTOP does."""
        if process.alive and not process.frozen:
            self.scheduler.story.record(self.scheduler.now, process.name, "is frozen")
            process.freeze()
            for client in self._clients_of(process):
                client.freeze()

    def thaw(self, process: SimProcess) -> None:
        """Let a process continue, as SIGCONT does."""
        if process.frozen:
            self.scheduler.story.record(self.scheduler.now, process.name, "goes on")
            process.thaw()
            for client in self._clients_of(process):
                client.thaw()

    def _clients_of(self, process: SimProcess) -> list[FakeProcess]:
        """Return the Kafka clients of a process.

        Create those of the job's own cluster if needed, so that they are frozen too and not made
        only after the thaw.
        """
        self.kafka_of(process)
        return [made for owner, made in self._clients.values() if owner is process]


def kind_of(process: SimProcess) -> str:
    """Return the kind of a process by its name. A fork server counts as a TaskManager."""
    for kind in ("jobmanager", "jobmaster", "slot", "driver", "worker"):
        if kind in process.name:
            return kind
    return "taskmanager"


def host_of(process: SimProcess) -> SimProcess:
    """Return the process that stands for the host of a process.

    TaskManagers and the JobManagers of session clusters have their own hosts. A local JobManager
    runs on the host of the user, and a JobMaster on the host of its JobManager.
    """
    parent = process.parent
    has_own_host = kind_of(process) == "taskmanager" or HOST in process.name
    return process if parent is None or has_own_host else host_of(parent)


class Programs:
    """The `processes.Programs` of one cluster: its main functions, as `bootstrap` runs them."""

    def __init__(
        self,
        world: SimCluster,
        cluster: str,
        config: Config,
        *,
        session_cluster: bool = False,
        storage: str = "",
    ) -> None:
        self._world, self._cluster, self._config = world, cluster, config
        self._session_cluster, self._storage = session_cluster, storage
        self.roles: Mapping[str, Role] = {
            "jobmanager": self._jobmanager,
            "jobmaster": self._jobmaster,
            "taskmanager": self._taskmanager,
            "standalone taskmanager": self._standalone_taskmanager,
        }
        self.slot: SlotMain = self._slot

    def _processes(self, owner: SimProcess) -> SimProcesses:
        return self._world.processes(
            owner,
            self._cluster,
            self._config,
            session_cluster=self._session_cluster,
            storage=self._storage,
        )

    def _jobmanager(
        self, process: SimProcess, arguments: Mapping[str, Any], announce: Announce
    ) -> ExitStatus:
        del arguments
        return run_jobmanager(
            self._cluster,
            self._config,
            self._world.drivers(process),
            self._processes(process),
            announce=announce,
            session_cluster=self._session_cluster,
            storage=self._storage,
        )

    def _jobmaster(
        self, process: SimProcess, arguments: Mapping[str, Any], announce: Announce
    ) -> ExitStatus:
        del announce
        return run_jobmaster(
            JobName(arguments["job"]),
            arguments["jobmanager_address"],
            LeaderEpoch(arguments["epoch"]),
            self._world.drivers(process),
        )

    def _taskmanager(
        self, process: SimProcess, arguments: Mapping[str, Any], announce: Announce
    ) -> ExitStatus:
        del announce
        return run_taskmanager(
            TaskManagerId(arguments["id"]),
            arguments["jobmanager_address"],
            LeaderEpoch(arguments["epoch"]),
            arguments["slots"],
            self._config,
            self._world.drivers(process),
            self._processes(process),
        )

    def _standalone_taskmanager(
        self, process: SimProcess, arguments: Mapping[str, Any], announce: Announce
    ) -> ExitStatus:
        del announce
        drivers, numbers = self._world.drivers(process), itertools.count(1)

        def serve() -> None:
            run_taskmanager(
                TaskManagerId(f"{process.name}-{process.pid}-{next(numbers)}"),
                arguments["jobmanager_address"],
                None,
                arguments["slots"],
                self._config,
                drivers,
                self._processes(process),
            )

        serve_forever(serve, drivers.clock)

    def _slot(
        self, process: SimProcess, start: StartSlot, arguments: Mapping[str, Any]
    ) -> ExitStatus:
        self._world.watch.record_slot(process, start.attempt)
        return run_slot(
            start,
            self._world.drivers(process),
            TaskManagerId(arguments["task_manager"]),
            arguments["task_manager_pid"],
        )


class SimDrivers:
    """The `ports.drivers.Drivers` of one simulated process."""

    clock: Clock
    threads: Threads
    entropy: Entropy
    process: CurrentProcess
    rpc: Rpc

    def __init__(self, world: SimCluster, process: SimProcess) -> None:
        self._world, self._process = world, process
        self.clock = SimClock(process)
        self.threads = SimThreads(process)
        self.entropy = SimEntropy(process)
        self.process = SimCurrentProcess(process)
        self.rpc = world.rpc_network.of(process)

    def blob_store(self, url: str) -> BlobStore:
        del url  # there is only one storage
        return SimBlobStore(self._world.mounts, self._process, self._world.request_faults)

    def kafka_admin(self, kafka: Mapping[str, str]) -> KafkaAdmin:
        return self._kafka(kafka).kafka_admin(kafka)

    def transaction_admin(self, kafka: Mapping[str, str]) -> TransactionAdmin:
        return self._kafka(kafka).transaction_admin(kafka)

    def transaction_coordinator(self, system: str, sinks: SinkOptions) -> TransactionCoordinator:
        return make_transaction_coordinator(system, sinks)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        self._world.watch.check_source_start(self._process)
        made = self._kafka(kafka).partition_reader(
            kafka, group, with_end_of_partition=with_end_of_partition
        )
        self._world.reads(self._process, made)
        return made

    def producer(
        self,
        kafka: Mapping[str, str],
        transactional_id: TransactionalId | None,
        transaction_timeout_ms: int,
    ) -> Producer:
        made = self._kafka(kafka).producer(kafka, transactional_id, transaction_timeout_ms)
        if transactional_id is None:
            self._world.watch.record_plain_producer(made.identity, self._process)
        return made

    def kv_store(self, backend: str, directory: Path) -> KeyValueStore:
        del backend  # the threads of RocksDB do not run in virtual time
        return MemoryStore(directory)

    def exchange(
        self, *, job: str, attempt: int, ordinal: int, host: str | None = None
    ) -> Exchange:
        del host
        return SimExchange(
            self._world.network, self._process, job=job, attempt=attempt, ordinal=ordinal
        )

    def _kafka(self, kafka: Mapping[str, str]) -> FakeProcess:
        return self._world.kafka_of(self._process, kafka["bootstrap.servers"])


if TYPE_CHECKING:

    def _(world: SimCluster, process: SimProcess) -> Drivers:
        return SimDrivers(world, process)
