"""The composition root: makes the real drivers and starts one role of a cluster in this process.

`python -m tidegate.role ROLE` is how a parent starts a child (`drivers/process`); arguments come by
standard input. Roles: `jobmanager`, `jobmaster`, `taskmanager`, `zygote`, and `slot` as a fork of
the zygote. Nothing else joins drivers to the planes: a service gets what it needs as ports.

What holds for every role: it ends with its parent; SIGINT is ignored (a Ctrl-C is the command
line's to interpret); SIGTERM is an orderly exit; the exit never waits for threads that are stuck.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import importlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from tidegate.config import Config
from tidegate.controlplane.client.local import LocalCluster
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.local_sockets import make_socket_dir
from tidegate.drivers.logs import set_up_logging
from tidegate.drivers.network import LOOPBACK, Network, is_loopback, own_address_towards
from tidegate.drivers.process.parent_watch import (
    exit_with_parent,
    is_prestarted,
    leave_if_orphaned,
    read_arguments,
)
from tidegate.drivers.process.prestart import Prestarted
from tidegate.drivers.process.spawn import OsProcesses
from tidegate.drivers.storage.remembered import RememberedStorage
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import (
    ConfigError,
    Domain,
    ResourceExhaustedError,
    RpcError,
    TidegateError,
    from_foreign,
)
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId
from tidegate.ports.processes import NO_RESOURCES

if TYPE_CHECKING:
    from tidegate.dataplane.waves.level_task import TaskHost

SLOT_MAIN = "tidegate.slot.main:run_slot"
TASKMANAGER_MAIN = "tidegate.controlplane.taskmanager.service:run_taskmanager"
JOBMANAGER_MAIN = "tidegate.controlplane.dispatcher.service:run_jobmanager"
WAVE_TASK = "tidegate.bootstrap:run_wave_task"
JOBMASTER_MAIN = "tidegate.controlplane.jobmaster.service:run_jobmaster"

FAILED = 1
"""Exit status of a process that raised; its log says what."""
REFUSED = 2
"""Exit status of a standing process for a mistake of whoever starts it."""
SOCKETS_PREFIX = "tidegate-run-"
"""How the folder begins that holds the Unix sockets of a local cluster."""
REJOIN_PAUSE_S, REJOIN_PAUSE_S_MAX = 0.2, 5.0
"""Before a standing TaskManager joins again: at first, and after tries that came to nothing."""

_LIBRARIES_OF_SLOTS = (
    "confluent_kafka",
    "fastavro",
    "grpc",
    "kafka.admin",
    "mmh3",
    "msgspec",
    "obstore",
    "rocksdict",
)
"""What slots use of others' libraries. Imported by the zygote; a library that starts a thread or
opens a file when it is imported must not stand here."""

_RPC = "tidegate.drivers.rpc.channel"
_STORAGE = "tidegate.drivers.storage.local"
_PRELOADED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "jobmanager": (JOBMANAGER_MAIN, _RPC, _STORAGE),
        "jobmaster": (
            JOBMASTER_MAIN,
            _RPC,
            _STORAGE,
            "tidegate.drivers.kafka.admin",
            "tidegate.drivers.kafka.transactions",
        ),
        "taskmanager": (TASKMANAGER_MAIN, _RPC),
        "zygote": (*_LIBRARIES_OF_SLOTS, SLOT_MAIN),
    }
)
"""What a process imports while it has no arguments yet. As with the libraries of slots, nothing may
be opened by that."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What every process of a cluster is given, and gives to its children."""

    config: Config
    cluster: str
    """Names the cluster in the checkpoint storage."""
    role_mains: Mapping[str, str] = field(default_factory=dict)
    """Roles with their mains as `module:function`, where a test brings its own."""
    path: tuple[str, ...] = ()
    """Folders that come first on the module path of every process."""
    network: Network = LOOPBACK
    """How the process and its children are reached."""
    storage: str = ""
    """The id of the checkpoint storage, where whoever starts the cluster has read it."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "cluster": self.cluster,
            "mains": dict(self.role_mains),
            "path": list(self.path),
            "network": dataclasses.asdict(self.network),
            "storage": self.storage,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ClusterSpec:
        return cls(
            config=Config.from_dict(given["config"]),
            cluster=given["cluster"],
            role_mains=given["mains"],
            path=tuple(given["path"]),
            network=Network(**given["network"]),
            storage=given["storage"],
        )


def processes(
    common: ClusterSpec, prestarted: Mapping[str, Prestarted] = MappingProxyType({})
) -> OsProcesses:
    """Starts processes of the cluster that `common` describes."""
    return OsProcesses(common.to_dict(), Path(common.config.logs.directory), prestarted)


def local_cluster(
    config: Config,
    *,
    cluster: str | None = None,
    on_restart: Callable[[int], None] | None = None,
    mains: Mapping[str, str] = MappingProxyType({}),
    jobmanager: Prestarted | None = None,
) -> LocalCluster:
    """Start a cluster on this machine, which ends with this process (or by `close`).

    `cluster` names it in the checkpoint storage; without it a new name is made, and jobs of earlier
    clusters are left alone. `role_mains` is for tests, see `ClusterSpec`. `jobmanager` is a
    prestarted one.
    """
    sockets = make_socket_dir(SOCKETS_PREFIX)
    with contextlib.ExitStack() as undo:
        remove_sockets = undo.callback(lambda: shutil.rmtree(sockets, ignore_errors=True))
        network = Network(socket_dir=str(sockets))
        drivers = SystemDrivers(network)
        common = ClusterSpec(
            config=config,
            cluster=cluster or secrets.token_hex(6),
            role_mains=mains,
            network=network,
            storage=drivers.blob_store(config.checkpoint.storage).identify(),
        )
        early = {} if jobmanager is None else {"jobmanager": jobmanager}
        started = LocalCluster(
            processes(common, early),
            drivers.rpc,
            drivers.clock,
            drivers.threads,
            on_restart=on_restart,
            on_closed=remove_sockets,
        )
        undo.pop_all()  # they are the cluster's to remove
    return started


def standing_jobmanager(config: Config, *, insecure: bool = False) -> NoReturn:
    """Be the JobManager of a standing cluster until a signal; ends this process.

    Its jobs live on in the checkpoint storage: the next one of the same `cluster.name` recovers
    them. ConfigError if it listens beyond the loopback address without `insecure`.
    """

    def serve() -> int:
        storage = config.checkpoint.storage
        if "://" not in storage:  # its JobMasters and slots have other working folders
            storage = str(Path(storage).absolute())
        checkpoint = config.checkpoint.model_copy(update={"storage": storage})
        own = config.model_copy(update={"checkpoint": checkpoint})
        network = Network(host=own.jobmanager.host, bind_host=own.jobmanager.bind_host)
        require_insecure(network, "jobmanager", insecure=insecure)
        common = ClusterSpec(config=own, cluster=own.cluster.name, network=network)
        remembered = RememberedStorage(Path(own.state.directory).absolute(), storage)
        identity = remembered.read()
        if identity:
            _log.info(
                "the checkpoint storage is the one with id %s, which this host used last; if %s "
                "was replaced by another one on purpose, remove %s",
                identity,
                storage,
                remembered.file,
            )

        def announce(facts: Mapping[str, object]) -> None:
            remembered.write(str(facts["storage"]))
            _log.info("serving: %s", facts)

        return run_jobmanager(
            common.cluster,
            own,
            SystemDrivers(network),
            processes(common),
            announce=announce,
            standing=True,
            storage=identity,
        )

    from tidegate.controlplane.dispatcher.service import run_jobmanager

    _run_server("jobmanager", config, serve)


def standing_taskmanager(config: Config, *, insecure: bool = False) -> NoReturn:
    """Be a standing TaskManager until a signal; ends this process.

    A TaskManager belongs to one JobManager; when that is lost this joins the next one, as another.
    ConfigError if it listens beyond the loopback address without `insecure`.
    """

    def serve() -> int:
        at = config.jobmanager
        clock = SystemClock()
        said, pause_s, checked = "", REJOIN_PAUSE_S, False
        while True:
            began_s = clock.monotonic()
            try:
                host = config.taskmanager.host or own_address_towards(at.host, at.port)
                network = Network(host=host, bind_host=config.taskmanager.bind_host)
                if not checked:
                    require_insecure(network, "taskmanager", insecure=insecure)
                    checked = True
                common = ClusterSpec(config=config, cluster=config.cluster.name, network=network)
                run_taskmanager(
                    TaskManagerId(f"standing-{host}-{secrets.token_hex(4)}"),
                    Network(host=at.host).advertised_address(at.port),
                    None,
                    config.taskmanager.slots,
                    config,
                    SystemDrivers(network),
                    processes(common),
                    port=config.taskmanager.port,
                )
            # No way to the JobManager yet, our port is still taken, or the host has no room.
            except (RpcError, ResourceExhaustedError) as error:
                if str(error) != said:
                    _log.warning("%s (It is tried again until it works.)", error)
                said = str(error)
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, REJOIN_PAUSE_S_MAX)
            if clock.monotonic() - began_s > 2 * REJOIN_PAUSE_S_MAX:  # it has served meanwhile
                said, pause_s = "", REJOIN_PAUSE_S

    from tidegate.controlplane.taskmanager.service import run_taskmanager

    _run_server("taskmanager", config, serve)


def require_insecure(network: Network, role: str, *, insecure: bool) -> None:
    """Refuse to listen where other hosts reach this process, unless the operator allows it.

    Whoever reaches a port of a cluster may submit code, which then runs as the cluster's user. So
    a process on a network needs a consent, and repeats what it means at each start. `role` names
    the section of the settings. ConfigError without the consent; RpcError for a name that cannot
    be resolved.
    """
    if is_loopback(network.listens_on):
        return
    if not insecure:
        raise ConfigError(
            f"The {role} listens on {network.listens_on}, which other hosts reach, and connections "
            "between the processes of a cluster are neither encrypted nor authenticated: whoever "
            "reaches the port can run code as this user. Keep the cluster in a private network and "
            f"start the {role} with --insecure, or listen on this host only: "
            f"-c {role}.host=127.0.0.1."
        )
    _log.warning(
        "The %s listens on %s without encryption and authentication: every host that reaches it "
        "can run code as this user.",
        role,
        network.listens_on,
    )


def _run_server(role: str, config: Config, serve: Callable[[], int]) -> NoReturn:
    """Run a process that nobody's life is tied to: it ends by SIGTERM or Ctrl-C, in order."""
    status = FAILED
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit_on_signal)
        set_up_logging(config.logs.level, role=role, pid=os.getpid())
        status = serve()
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else FAILED
    except TidegateError as error:
        if error.domain is Domain.USER:
            status = REFUSED
        _log.error("%s", error, exc_info=error if error.domain is Domain.INTERNAL else None)
    except BaseException:  # noqa: BLE001  # the last frame of a process: said, then left
        _log.exception("the %s process failed", role)
    finally:
        _exit(status)


def run_role(role: str, children: Mapping[str, Prestarted]) -> NoReturn:
    """Run a role until it ends, and end this process with its status. `children` are prestarted."""
    status = FAILED
    try:
        if is_prestarted():
            _preload(role)
        given = read_arguments()
        gc.enable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _exit_on_signal)
        common = ClusterSpec.from_dict(given["common"])
        sys.path[:0] = common.path
        set_up_logging(common.config.logs.level, role=role, pid=os.getpid())
        if role != "zygote":  # which has the TaskManager's socket for that, and must have no thread
            exit_with_parent()
        arguments = {**given["arguments"], "fds": given["fds"]}
        status = _ROLES[role](common, arguments, children)
    except SystemExit as exit_:
        status = exit_.code if isinstance(exit_.code, int) else FAILED
    except TidegateError as error:
        status = _status_of(error)
        _log.error("%s", error, exc_info=error.__cause__ or error)  # with the cause
    except BaseException as error:  # noqa: BLE001  # the last frame of a process: said, then left
        status = _status_of(from_foreign(error))
        _log.exception("the %s process failed", role)
    finally:
        _exit(status)


def _preload(role: str) -> None:
    """Import what a role needs. The parent may end meanwhile, and others need the processor."""
    for name in _PRELOADED[role]:
        leave_if_orphaned()
        importlib.import_module(name.partition(":")[0])


def _status_of(error: TidegateError) -> int:
    return NO_RESOURCES if isinstance(error, ResourceExhaustedError) else FAILED


def _exit(status: int) -> NoReturn:
    """Exit without waiting for threads: one may hang in a call that nobody will answer."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # of the disk of the logs: it must not change the status
            stream.flush()
    os._exit(status)


def _exit_on_signal(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _announce(facts: Mapping[str, object]) -> None:
    """Tell the parent what it waits for; afterwards standard output is the log, as in other
    roles.
    """
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    os.dup2(2, 1)


def _jobmanager(
    common: ClusterSpec, _arguments: dict[str, Any], children: Mapping[str, Prestarted]
) -> int:
    run = _named(common.role_mains.get("jobmanager", JOBMANAGER_MAIN))
    status: int = run(
        common.cluster,
        common.config,
        SystemDrivers(common.network),
        processes(common, children),
        announce=_announce,
        storage=common.storage,
    )
    return status


def _jobmaster(
    common: ClusterSpec, arguments: dict[str, Any], _children: Mapping[str, Prestarted]
) -> int:
    set_up_logging(
        common.config.logs.level, role="jobmaster", job=arguments["job"], pid=os.getpid()
    )
    run = _named(common.role_mains.get("jobmaster", JOBMASTER_MAIN))
    status: int = run(
        JobName(arguments["job"]),
        arguments["jobmanager_address"],
        LeaderEpoch(arguments["epoch"]),
        SystemDrivers(common.network),
    )
    return status


def _taskmanager(
    common: ClusterSpec, arguments: dict[str, Any], children: Mapping[str, Prestarted]
) -> int:
    run = _named(common.role_mains.get("taskmanager", TASKMANAGER_MAIN))
    status: int = run(
        TaskManagerId(arguments["id"]),
        arguments["jobmanager_address"],
        LeaderEpoch(arguments["epoch"]),
        arguments["slots"],
        common.config,
        SystemDrivers(common.network),
        processes(common, children),
    )
    return status


def _zygote(
    common: ClusterSpec, arguments: dict[str, Any], _children: Mapping[str, Prestarted]
) -> int:
    for name in _LIBRARIES_OF_SLOTS:
        importlib.import_module(name)
    drivers = SystemDrivers(common.network)
    run = _named(common.role_mains.get("slot", SLOT_MAIN))
    from tidegate.drivers.process.fork_server import run_fork_server
    from tidegate.protocol.messages import StartSlot

    task_manager = TaskManagerId(arguments["task_manager"])
    logs = Path(common.config.logs.directory)

    def slot_log(start: StartSlot) -> Path:
        return logs / start.job / f"slot-{task_manager}-{start.index}.log"

    def slot_main(start: StartSlot) -> int:
        level = common.config.logs.level
        names = {"job": start.job, "attempt": start.attempt, "ordinal": start.ordinal}
        set_up_logging(level, role="slot", **names, pid=os.getpid())
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a real file
        # A collection writes to each object that it looks at: those of the zygote would no longer
        # be shared with it. The slot settles the rest (`CurrentProcess.settle`).
        gc.freeze()
        status: int = run(start, drivers, task_manager, arguments["task_manager_pid"])
        return status

    commands = socket.socket(fileno=arguments["fds"][0])
    return run_fork_server(commands, slot_main, slot_log)


def run_wave_task(attempt: Any, payload: bytes, rows: Iterator[Any]) -> Iterator[Any]:
    """A task of a backfill in a Python worker of Spark, which imports this by name."""
    from tidegate.backfill.spark.executor import run_task

    yield from run_task(attempt, payload, rows, task_host())


@functools.cache
def task_host() -> TaskHost:
    """What tasks of waves are given, one for all of this process: a worker runs many."""
    from tidegate.dataplane.engine import IO_THREADS
    from tidegate.dataplane.shared_control import SharedControl
    from tidegate.dataplane.waves.level_task import TaskHost

    drivers = SystemDrivers()
    io = drivers.threads.pool(IO_THREADS, name="io")
    return TaskHost(drivers=drivers, io=io, control=SharedControl())


def _named(reference: str) -> Callable[..., Any]:
    module, name = reference.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


_ROLES: dict[str, Callable[[ClusterSpec, dict[str, Any], Mapping[str, Prestarted]], int]] = {
    "jobmanager": _jobmanager,
    "jobmaster": _jobmaster,
    "taskmanager": _taskmanager,
    "zygote": _zygote,
}
