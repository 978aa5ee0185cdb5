"""The composition root, which makes the real drivers and starts one role of a cluster in this
process.

A parent starts a child with `python -m tidegate.role ROLE`, or forks it, and passes the arguments
on standard input (`drivers/process`). Roles are `jobmanager`, `jobmaster`, `taskmanager`,
`fork-server`, and `slot`, which is a fork of the fork server. No other module connects drivers to
the control plane and the data plane: a service receives what it needs as ports.

Four rules hold for every role. A process ends with its parent. It ignores SIGINT, because the
command line interprets a Ctrl-C. SIGTERM is an orderly exit. The exit never waits for threads that
are stuck.
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

import msgspec
from setproctitle import setproctitle

from tidegate.config import Config
from tidegate.controlplane.client.local import LocalCluster
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.endpoint import LOOPBACK, Endpoint, is_loopback, own_address_towards
from tidegate.drivers.local_sockets import make_socket_dir
from tidegate.drivers.logs import set_up_logging
from tidegate.drivers.process.forked import count_threads
from tidegate.drivers.process.parent_watch import (
    exit_if_orphaned,
    exit_with_parent,
    is_prestarted,
    read_arguments,
)
from tidegate.drivers.process.prestart import Prestarted, prestarted
from tidegate.drivers.process.rotating_output import rotating_text
from tidegate.drivers.process.spawn import OsProcesses
from tidegate.drivers.process.user_forks import watch_forks
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
from tidegate.protocol.messages import StartSlot
from tidegate.storage_location import locate, with_absolute_folders
from tidegate.user_exceptions import Terminated

if TYPE_CHECKING:
    from tidegate.dataplane.waves.level_task import TaskHost
    from tidegate.drivers.process.fork_server import SlotRole

SLOT_MAIN = "tidegate.slot.main:run_slot"
TASKMANAGER_MAIN = "tidegate.controlplane.taskmanager.service:run_taskmanager"
JOBMANAGER_MAIN = "tidegate.controlplane.jobmanager.service:run_jobmanager"
WAVE_TASK = "tidegate.bootstrap:run_wave_task"
JOBMASTER_MAIN = "tidegate.controlplane.jobmaster.process:run_jobmaster"

FAILED = 1
"""The exit status of a process that failed. The process's log has the reason."""
REFUSED = 2
"""The exit status of a server process that the user started wrongly, for example with a wrong
setting.
"""
SOCKETS_PREFIX = "tidegate-run-"
"""The prefix of the folder that holds the Unix sockets of a local cluster."""
REJOIN_PAUSE_S, REJOIN_PAUSE_S_MAX = 0.2, 5.0
"""The first and the longest pause before a standalone TaskManager joins again, in seconds. The
pause doubles after each failed try.
"""

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
"""The third-party libraries that slots use. The fork server imports them. A library that starts a
thread or opens a file at its import must not be in this list.
"""

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
        "fork-server": (*_LIBRARIES_OF_SLOTS, SLOT_MAIN),
    }
)
"""The modules of each role. A process imports those of its role and of its first children before it
forks these. As with the libraries of slots, these imports must not start a thread or open a file.
"""
_FIRST_CHILDREN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"jobmanager": ("taskmanager", "jobmaster"), "taskmanager": ("fork-server",)}
)
"""The roles that each role starts as soon as it serves. It forks them before."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The data that every process of a cluster receives, and passes on to its children."""

    config: Config
    cluster: str
    """The name of the cluster in the checkpoint storage."""
    role_mains: Mapping[str, str] = field(default_factory=dict)
    """The mains of roles as `module:function`, if a test replaces them."""
    path: tuple[str, ...] = ()
    """The folders that come first on the module path of every process."""
    endpoint: Endpoint = LOOPBACK
    """The addresses at which the process and its children are reached."""
    storage: str = ""
    """The id of the checkpoint storage, if the process that starts the cluster has read it."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "cluster": self.cluster,
            "mains": dict(self.role_mains),
            "path": list(self.path),
            "endpoint": dataclasses.asdict(self.endpoint),
            "storage": self.storage,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ClusterSpec:
        return cls(
            config=Config.from_dict(given["config"]),
            cluster=given["cluster"],
            role_mains=given["mains"],
            path=tuple(given["path"]),
            endpoint=Endpoint(**given["endpoint"]),
            storage=given["storage"],
        )


def processes(
    cluster_spec: ClusterSpec, prestarted: Mapping[str, Prestarted] = MappingProxyType({})
) -> OsProcesses:
    """Return the starter for processes of the cluster that `cluster_spec` describes."""
    return OsProcesses(cluster_spec.to_dict(), Path(cluster_spec.config.logs.dir), prestarted)


def local_cluster(
    config: Config,
    *,
    cluster: str | None = None,
    on_restart: Callable[[int], None] | None = None,
    mains: Mapping[str, str] = MappingProxyType({}),
    jobmanager: Prestarted | None = None,
) -> LocalCluster:
    """Start a cluster on this machine, which ends with this process (or by `close`).

    `cluster` names it in the checkpoint storage. Without `cluster`, a new name is made, and jobs of
    earlier clusters are not touched. `mains` is for tests, see `ClusterSpec`. `jobmanager` is a
    prestarted one.
    """
    sockets = make_socket_dir(SOCKETS_PREFIX)
    with contextlib.ExitStack() as undo:
        remove_sockets = undo.callback(lambda: shutil.rmtree(sockets, ignore_errors=True))
        endpoint = Endpoint(socket_dir=str(sockets))
        drivers = SystemDrivers(endpoint)
        cluster_spec = ClusterSpec(
            config=config,
            cluster=cluster or secrets.token_hex(6),
            role_mains=mains,
            endpoint=endpoint,
            storage=drivers.blob_store(config.checkpoint.dir).identify(),
        )
        early = {} if jobmanager is None else {"jobmanager": jobmanager}
        started = LocalCluster(
            processes(cluster_spec, early),
            drivers.rpc,
            drivers.clock,
            drivers.threads,
            on_restart=on_restart,
            on_closed=remove_sockets,
        )
        undo.pop_all()  # from now on, the cluster removes them
    return started


def run_session_jobmanager(config: Config, *, insecure: bool = False) -> NoReturn:
    """Run the JobManager of a session cluster until a signal, then end this process.

    Its jobs stay in the checkpoint storage. The next JobManager with the same `cluster.name`
    recovers them. If the JobManager would listen beyond the loopback address without `insecure`, a
    ConfigError is logged and the exit status is `REFUSED`.
    """

    def serve() -> int:
        # JobMasters and slots have other working folders.
        storage = locate(config.checkpoint.dir, Path.cwd())
        checkpoint = dataclasses.replace(config.checkpoint, dir=storage)
        own = dataclasses.replace(config, checkpoint=checkpoint)
        endpoint = Endpoint(host=own.jobmanager.host, bind_host=own.jobmanager.bind_host)
        require_insecure(endpoint, "jobmanager", insecure=insecure)
        cluster_spec = ClusterSpec(config=own, cluster=own.cluster.name, endpoint=endpoint)
        remembered = RememberedStorage(Path(own.state.local_dir).absolute(), storage)
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
            cluster_spec.cluster,
            own,
            SystemDrivers(endpoint),
            processes(cluster_spec),
            announce=announce,
            session_cluster=True,
            storage=identity,
        )

    from tidegate.controlplane.jobmanager.service import run_jobmanager

    _run_server("jobmanager", config, serve)


def run_standalone_taskmanager(config: Config, *, insecure: bool = False) -> NoReturn:
    """Run a standalone TaskManager until a signal, then end this process.

    A TaskManager belongs to one JobManager. If it loses that JobManager, this process joins the
    next one, with a new id. If the TaskManager would listen beyond the loopback address without
    `insecure`, a ConfigError is logged and the exit status is `REFUSED`.
    """

    def serve() -> int:
        own = with_absolute_folders(config, Path.cwd())
        at = own.jobmanager
        clock = SystemClock()
        last_error, pause_s, checked = "", REJOIN_PAUSE_S, False
        while True:
            began_s = clock.monotonic()
            try:
                host = config.taskmanager.host or own_address_towards(at.host, at.port)
                endpoint = Endpoint(host=host, bind_host=config.taskmanager.bind_host)
                if not checked:
                    require_insecure(endpoint, "taskmanager", insecure=insecure)
                    checked = True
                cluster_spec = ClusterSpec(config=own, cluster=own.cluster.name, endpoint=endpoint)
                run_taskmanager(
                    TaskManagerId(f"standalone-{host}-{secrets.token_hex(4)}"),
                    Endpoint(host=at.host).advertised_address(at.port),
                    None,
                    config.taskmanager.slots,
                    config,
                    SystemDrivers(endpoint),
                    processes(cluster_spec),
                    port=config.taskmanager.port,
                )
            # The JobManager cannot be reached yet, the port is in use, or the host lacks resources.
            except (RpcError, ResourceExhaustedError) as error:
                if str(error) != last_error:
                    _log.warning("%s (It is retried until it works.)", error)
                last_error = str(error)
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, REJOIN_PAUSE_S_MAX)
            if clock.monotonic() - began_s > 2 * REJOIN_PAUSE_S_MAX:  # it was in service
                last_error, pause_s = "", REJOIN_PAUSE_S

    from tidegate.controlplane.taskmanager.service import run_taskmanager

    _run_server("taskmanager", config, serve)


def require_insecure(endpoint: Endpoint, role: str, *, insecure: bool) -> None:
    """Refuse to listen on an address that other hosts reach, unless the operator allows it.

    Every process that reaches a port of a cluster can submit code, which then runs as the cluster's
    user. So a process on a network needs the operator's consent, and it logs a warning at each
    start. `role` names the section of the settings. Raise ConfigError without the consent, and
    RpcError for a name that cannot be resolved.
    """
    if is_loopback(endpoint.bind_address):
        return
    if not insecure:
        raise ConfigError(
            f"The {role} listens on {endpoint.bind_address}, which other hosts reach, and "
            "connections between the processes of a cluster are neither encrypted nor "
            "authenticated: every host that reaches the port can run code as this user. Keep the "
            f"cluster in a private network and start the {role} with --insecure, or listen on "
            f"this host only: -c {role}.host=127.0.0.1."
        )
    _log.warning(
        "The %s listens on %s without encryption and authentication: every host that reaches it "
        "can run code as this user.",
        role,
        endpoint.bind_address,
    )


def _run_server(role: str, config: Config, serve: Callable[[], int]) -> NoReturn:
    """Run a process that does not end with a parent. SIGTERM or Ctrl-C ends it in order."""
    status = FAILED
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _exit_on_signal)
        set_up_logging(config.logs.level, role=role, pid=os.getpid())
        status = serve()
    except Terminated:
        status = 0
    except TidegateError as error:
        if error.domain is Domain.USER:
            status = REFUSED
        _log.error("%s", error, exc_info=error if error.domain is Domain.INTERNAL else None)
    except BaseException:  # noqa: BLE001  # the last frame of a process: said, then left
        _log.exception("the %s process failed", role)
    finally:
        _exit(status)


def run_role(role: str) -> NoReturn:
    """Run a role until it ends, and end this process with its status. The process has one thread
    and has opened nothing.
    """
    status = FAILED
    try:
        setproctitle(f"tidegate {role}")
        # A supervisor may let its children ignore it. The kernel then forgets how a child ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _preload(role)
        children = _fork_first_children(role)
        given = read_arguments()
        gc.enable()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _exit_on_signal)
        cluster_spec = ClusterSpec.from_dict(given["common"])
        sys.path[:0] = cluster_spec.path
        logs = cluster_spec.config.logs
        sys.stderr = rotating_text(2, Path(given["log"]), logs.max_file_size)
        set_up_logging(logs.level, role=role, pid=os.getpid())
        if role != "fork-server":  # it ends with the TaskManager's socket, and has no thread
            exit_with_parent()
        arguments = {**given["arguments"], "fds": given["fds"]}
        status = _ROLES[role](cluster_spec, arguments, children)
    except Terminated:
        status = 0
    except TidegateError as error:
        status = _status_of(error)
        _log.error("%s", error, exc_info=error.__cause__ or error)  # with the cause
    except BaseException as error:  # noqa: BLE001  # the last frame of a process: said, then left
        status = _status_of(from_foreign(error))
        _log.exception("the %s process failed", role)
    finally:
        _exit(status)


def _preload(role: str) -> None:
    """Import the modules of a role, and of the first children that it forks, and theirs. The parent
    of a prestarted process may end meanwhile. This process then exits, because other processes need
    the processor.
    """
    for name in _PRELOADED[role]:
        if is_prestarted():
            exit_if_orphaned()
        importlib.import_module(name.partition(":")[0])
    for child in _FIRST_CHILDREN.get(role, ()):
        _preload(child)


def _fork_first_children(role: str) -> dict[str, Prestarted]:
    """Fork the first children of a role, which wait for their arguments. If the operating system
    refuses one, it is started later, as a program. All are, if an import has started a thread: the
    environment of a user may have a tracer or a debugger.
    """
    first = _FIRST_CHILDREN.get(role, ()) if count_threads() == 1 else ()
    if first:
        # A garbage collection writes to each object that it visits, and so unshares its page.
        gc.freeze()
    forked = {child: prestarted(child, become=run_role) for child in first}
    return {child: process for child, process in forked.items() if process is not None}


def _status_of(error: TidegateError) -> int:
    return NO_RESOURCES if isinstance(error, ResourceExhaustedError) else FAILED


def _exit(status: int) -> NoReturn:
    """Exit without waiting for threads, because a thread may hang in a call that is never
    answered.
    """
    for stream in (sys.stdout, sys.stderr):
        # A full disk must not change the status, nor must what user code has put in place of them.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


def _exit_on_signal(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated(0)


def _announce(facts: Mapping[str, object]) -> None:
    """Send the parent the data that it waits for. Afterwards, standard output is the log, as in
    other roles.
    """
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
    os.dup2(2, 1)


def _jobmanager(
    cluster_spec: ClusterSpec, _arguments: dict[str, Any], children: Mapping[str, Prestarted]
) -> int:
    run = _named(cluster_spec.role_mains.get("jobmanager", JOBMANAGER_MAIN))
    status: int = run(
        cluster_spec.cluster,
        cluster_spec.config,
        SystemDrivers(cluster_spec.endpoint),
        processes(cluster_spec, children),
        announce=_announce,
        storage=cluster_spec.storage,
    )
    return status


def _jobmaster(
    cluster_spec: ClusterSpec, arguments: dict[str, Any], _children: Mapping[str, Prestarted]
) -> int:
    set_up_logging(
        cluster_spec.config.logs.level, role="jobmaster", job=arguments["job"], pid=os.getpid()
    )
    setproctitle(f"tidegate jobmaster {arguments['job']}")
    run = _named(cluster_spec.role_mains.get("jobmaster", JOBMASTER_MAIN))
    watch_forks(everywhere=True)
    status: int = run(
        JobName(arguments["job"]),
        arguments["jobmanager_address"],
        LeaderEpoch(arguments["epoch"]),
        SystemDrivers(cluster_spec.endpoint),
    )
    return status


def _taskmanager(
    cluster_spec: ClusterSpec, arguments: dict[str, Any], children: Mapping[str, Prestarted]
) -> int:
    run = _named(cluster_spec.role_mains.get("taskmanager", TASKMANAGER_MAIN))
    status: int = run(
        TaskManagerId(arguments["id"]),
        arguments["jobmanager_address"],
        LeaderEpoch(arguments["epoch"]),
        arguments["slots"],
        cluster_spec.config,
        SystemDrivers(cluster_spec.endpoint),
        processes(cluster_spec, children),
    )
    return status


def _fork_server(
    cluster_spec: ClusterSpec, arguments: dict[str, Any], _children: Mapping[str, Prestarted]
) -> int:
    from tidegate.drivers.process.fork_server import run_fork_server

    commands = socket.socket(fileno=arguments.pop("fds")[0])
    return run_fork_server(commands, _slot_role(cluster_spec, arguments))


def _slot_role(cluster_spec: ClusterSpec, arguments: dict[str, Any]) -> SlotRole:
    from tidegate.drivers.process.current import OsProcess
    from tidegate.drivers.process.fork_server import SlotRole

    drivers = SystemDrivers(cluster_spec.endpoint)
    run = _named(cluster_spec.role_mains.get("slot", SLOT_MAIN))
    task_manager = TaskManagerId(arguments["task_manager"])
    logs = Path(cluster_spec.config.logs.dir)

    def main(start: StartSlot, stacks: int) -> int:
        level = cluster_spec.config.logs.level
        names = {"job": start.job, "attempt": start.attempt, "ordinal": start.ordinal}
        set_up_logging(level, role="slot", **names, pid=os.getpid())
        setproctitle(f"tidegate slot {start.job} {start.ordinal}")
        drivers.process = OsProcess(stacks)
        # A garbage collection writes to each object that it visits, so the slot would no longer
        # share those of its parent. The slot freezes the rest (`CurrentProcess.freeze_gc`).
        gc.freeze()
        watch_forks(everywhere=True)
        status: int = run(start, drivers, task_manager, arguments["task_manager_pid"])
        return status

    return SlotRole(
        main=main,
        log=lambda start: logs / start.job / f"slot-{task_manager}-{start.index}.log",
        output=lambda start: logs / start.job / f"subtask-{start.ordinal}.out",
        max_file_size=cluster_spec.config.logs.max_file_size,
        arguments={"common": cluster_spec.to_dict(), "arguments": arguments},
    )


def run_slot_program(given: int, stacks: int) -> NoReturn:
    """Run a slot as a program. Its arguments are in the file with the descriptor `given`."""
    arguments = json.load(os.fdopen(given, "rb"))
    os.set_inheritable(stacks, False)  # no child of the slot keeps it open
    setproctitle("tidegate slot")
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit_on_signal)
    cluster_spec = ClusterSpec.from_dict(arguments["common"])
    sys.path[:0] = cluster_spec.path
    _preload("fork-server")
    role = _slot_role(cluster_spec, arguments["arguments"])
    from tidegate.drivers.process.fork_server import become_slot

    become_slot(msgspec.convert(arguments["start"], StartSlot), role, stacks)


def run_wave_task(attempt: Any, payload: bytes, rows: Iterator[Any]) -> Iterator[Any]:
    """Run a task of a backfill in a Python worker of Spark. The worker imports this function by its
    name.
    """
    from tidegate.backfill.spark.executor import run_task

    yield from run_task(attempt, payload, rows, task_host())
    freeze_imported()


@functools.cache
def freeze_imported() -> None:
    """Exclude the modules that the first task has imported from garbage collections. Spark collects
    after each task, and a visit of all modules takes 100 ms.
    """
    gc.collect()
    gc.freeze()


@functools.cache
def task_host() -> TaskHost:
    """Return the shared resources for tasks of waves. A worker runs many tasks, so the process has
    only one set.
    """
    from tidegate.dataplane.engine import IO_THREADS
    from tidegate.dataplane.shared_transaction_admin import SharedTransactionAdmin
    from tidegate.dataplane.waves.level_task import TaskHost

    drivers = SystemDrivers()
    io = drivers.threads.pool(IO_THREADS, name="io")
    watch_forks(everywhere=False)
    return TaskHost(drivers=drivers, io=io, shared_admin=SharedTransactionAdmin())


def _named(reference: str) -> Callable[..., Any]:
    module, name = reference.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


_ROLES: dict[str, Callable[[ClusterSpec, dict[str, Any], Mapping[str, Prestarted]], int]] = {
    "jobmanager": _jobmanager,
    "jobmaster": _jobmaster,
    "taskmanager": _taskmanager,
    "fork-server": _fork_server,
}
