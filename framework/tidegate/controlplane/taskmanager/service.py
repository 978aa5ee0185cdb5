"""The TaskManager process: carries out the instructions of its machine.

It starts its fork server first, which needs a quarter of a second for imports. Then it listens and
registers, and serves from then on. Requests for forks wait in the socket of the fork server until
that is ready. The main thread runs the event loop. RPC threads, the reader of the fork server and
worker threads only post events to it.
"""

from __future__ import annotations

import itertools
import logging
import math
from dataclasses import dataclass, field

from tidegate.config import Config
from tidegate.controlplane.loop import EventLoop, PendingRequest
from tidegate.controlplane.taskmanager import machine as m
from tidegate.errors import RpcError, TidegateError
from tidegate.ids import LeaderEpoch, TaskManagerId
from tidegate.ports.clock import Clock
from tidegate.ports.drivers import Drivers
from tidegate.ports.processes import (
    ForkServer,
    ForkServerEnded,
    ForkServerEvent,
    ForkServerReady,
    Processes,
    SlotEnded,
    SlotForked,
    SlotNotForked,
    SlotStacksDumped,
)
from tidegate.ports.rpc import Rpc, RpcClient, RpcServer
from tidegate.protocol.messages import Message, RegisterTaskManager, TaskManagerAccepted
from tidegate.protocol.versions import PYTHON, TIDEGATE

ENDED = 3
"""Exit status of a TaskManager that ended itself: the JobManager refused it or did not answer, or
its fork server ended."""
RETRY_PAUSE_S = 0.5
"""Seconds between two tries of a standalone TaskManager to register. A JobManager that died is
replaced within seconds."""
LOG_INTERVAL_S = 30.0
"""Seconds between two log lines that say that the TaskManager still waits for the JobManager."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SendDue:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class _ForkServerIsReady:
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """A message to a JobMaster was sent, or it failed with `error`."""

    error: str = ""


_Event = m.Event | PendingRequest | SlotStacksDumped | _Told | _SendDue | _ForkServerIsReady


def run_taskmanager(
    id_: TaskManagerId,
    jobmanager_address: str,
    epoch: LeaderEpoch | None,
    slots: int,
    config: Config,
    drivers: Drivers,
    processes: Processes,
    *,
    port: int = 0,
) -> int:
    """Serve until the JobManager is lost. Return the exit status.

    A JobManager gives its own `epoch` to the TaskManagers that it starts. Such a TaskManager raises
    RpcError if it cannot register, and the JobManager starts another one. Without an epoch the
    TaskManager is standalone: it waits until a JobManager answers, and joins that JobManager.
    """
    loop: EventLoop[_Event] = EventLoop(drivers.clock, drivers.threads)
    fork_server = processes.start_fork_server(
        {"task_manager": id_, "task_manager_pid": drivers.process.pid},
        log=f"{id_}.fork_server.log",
        listener=lambda event: loop.post(_from_fork_server(event)),
    )
    server: RpcServer | None = None
    jobmanager = drivers.rpc.connect(jobmanager_address)
    try:
        server = drivers.rpc.serve(
            lambda message: loop.request(lambda pending_request: pending_request, message), port
        )
        joins = RegisterTaskManager(
            id=id_,
            epoch=epoch,
            address=server.address,
            slots=slots,
            pid=drivers.process.pid,
            tidegate_version=TIDEGATE,
            python_version=PYTHON,
        )
        timeout_s = 0.0 if epoch is not None else math.inf
        reply = _register(jobmanager, joins, drivers.clock, timeout_s)
        if not isinstance(reply, TaskManagerAccepted):
            _log.error("not accepted by the JobManager: %s", reply)
            return ENDED
        service = _Service(
            loop=loop,
            fork_server=fork_server,
            jobmanager=jobmanager,
            heartbeat_s=_heartbeat_s(config, standalone=epoch is None),
            answer_s=_answer_s(config),
            machine=m.TaskManagerMachine(
                id_=id_,
                epoch=reply.epoch,
                slots=slots,
                heartbeat_timeout_ms=config.cluster.heartbeat_timeout,
                now_ms=_ms(drivers),
            ),
            drivers=drivers,
        )
        _log.info("%s serves %d slots at %s", id_, slots, server.address)
        loop.post(m.HeartbeatDue())
        loop.run(service.handle)
        return ENDED
    finally:
        loop.close()
        fork_server.close()
        jobmanager.close()
        if server is not None:
            server.close()


def _heartbeat_s(config: Config, *, standalone: bool) -> float:
    """Return the seconds between two heartbeats.

    A TaskManager that a JobManager has started dies with it, and its heartbeats carry no news. A
    standalone TaskManager learns from its heartbeats that it must join another JobManager.
    """
    cluster = config.cluster
    return (cluster.heartbeat_interval if standalone else cluster.quiet_interval) / 1000


def _answer_s(config: Config) -> float:
    """Return the RPC timeout in seconds: a quarter of the heartbeat timeout.

    After a lost reply, the next heartbeat can then still arrive before either side declares the
    other one lost. This does not hold for the longest heartbeat interval that is allowed.
    """
    return config.cluster.heartbeat_timeout / 1000 / 4


def _register(
    jobmanager: RpcClient, message: RegisterTaskManager, clock: Clock, timeout_s: float
) -> Message:
    """Register and return the JobManager's reply. Raise RpcError if none comes in `timeout_s`.

    Repeating the request is safe, because the JobManager accepts the same registration again.
    """
    began_s = clock.monotonic()
    tell_s = began_s
    while True:
        try:
            reply: Message = jobmanager.call(message)
        except RpcError as error:
            now_s = clock.monotonic()
            if now_s - began_s >= timeout_s:
                raise
            if now_s >= tell_s:
                _log.warning("waiting for the JobManager: %s", error)
                tell_s = now_s + LOG_INTERVAL_S
            clock.sleep(RETRY_PAUSE_S)
        else:
            return reply


@dataclass(slots=True, kw_only=True)
class _Service:
    """The machine, and the objects that carry out its instructions."""

    loop: EventLoop[_Event]
    fork_server: ForkServer
    jobmanager: RpcClient
    heartbeat_s: float
    answer_s: float
    machine: m.TaskManagerMachine
    drivers: Drivers
    _pending_requests: dict[int, PendingRequest] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def handle(self, event: _Event) -> None:
        match event:
            case SlotStacksDumped():
                stalled = m.SlotProcessStalled(
                    index=event.index,
                    pid=event.pid,
                    code=event.code,
                    dump=event.dump,
                    seen_ms=self.drivers.clock.now_ms(),
                )
                _log.warning("no thread of slot process %d can run:\n%s", event.pid, event.dump)
                self._decide(stalled)
            case PendingRequest():
                request_id = next(self._numbers)
                self._pending_requests[request_id] = event
                self._decide(m.JobManagerRequest(request_id=request_id, message=event.message))
            case _Told(error=error):
                if error:
                    _log.warning("a JobMaster did not get the stacks of a stalled slot: %s", error)
            case _SendDue(message=message):
                self._send(message)
            case _ForkServerIsReady(pid=pid):
                _log.info("fork server %d is ready", pid)
            case m.HeartbeatDue():
                self.loop.call_later(self.heartbeat_s, event)
                self._decide(event)
            case _:
                self._decide(event)

    def _decide(self, event: m.Event) -> None:
        if isinstance(event, m.Forked | m.NotForked | m.SlotProcessExited | m.ForkServerExited):
            _log.info("%s", event)
        for instruction in self.machine.handle(event, _ms(self.drivers)):
            self._carry_out(instruction)

    def _carry_out(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.Reply(request_id=request_id, message=message):
                self._pending_requests.pop(request_id).reply(message)
            case m.ForkSlot(start=start):
                self.fork_server.fork(start)
            case m.KillSlot(pid=pid):
                self.fork_server.kill(pid)
            case m.SendToJobManager(message=message, after_ms=0):
                self._send(message)
            case m.SendToJobManager(message=message, after_ms=after_ms):
                self.loop.call_later(after_ms / 1000, _SendDue(message=message))
            case m.SendToJobMaster(address=address, message=message):
                self._send_to_jobmaster(address, message)
            case m.ExitProcess(reason=reason):
                _log.error("this TaskManager ends: %s", reason)
                self.loop.stop()

    def _send_to_jobmaster(self, address: str, message: Message) -> None:
        rpc = self.drivers.rpc
        self.loop.submit(
            lambda: _send_once(rpc, address, message, self.answer_s),
            lambda _: _Told(),
            lambda error: _Told(error=str(error)),
        )

    def _send(self, message: Message) -> None:
        def failed(error: TidegateError) -> _Event:
            _log.warning("%s", error)
            return m.RequestFailed(message=message)

        self.loop.submit(
            lambda: self.jobmanager.call(message, self.answer_s),
            lambda reply: m.Replied(message=message, reply=reply),
            failed,
        )


def _send_once(rpc: Rpc, address: str, message: Message, timeout_s: float) -> None:
    client = rpc.connect(address)
    try:
        client.call(message, timeout_s)
    finally:
        client.close()


def _from_fork_server(event: ForkServerEvent) -> _Event:
    match event:
        case ForkServerReady(pid=pid):
            return _ForkServerIsReady(pid=pid)
        case SlotForked(index=index, pid=pid):
            return m.Forked(index=index, pid=pid)
        case SlotNotForked(index=index, reason=reason):
            return m.NotForked(index=index, reason=reason)
        case SlotStacksDumped():
            return event
        case SlotEnded(index=index, pid=pid, status=status):
            return m.SlotProcessExited(index=index, pid=pid, status=status)
        case ForkServerEnded(status=status):
            return m.ForkServerExited(status=status)


def _ms(drivers: Drivers) -> int:
    return int(drivers.clock.monotonic() * 1000)
