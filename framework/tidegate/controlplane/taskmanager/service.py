"""The TaskManager process: carries out what its machine says.

It starts its zygote first (a quarter of a second of imports), then listens, registers, and is
ready: forks asked for meanwhile wait in the zygote's socket. The main thread is the loop; RPC
threads, the zygote's reader and worker threads only post to it.
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
    Processes,
    SlotEnded,
    SlotForked,
    SlotNotForked,
    ZygoteEnded,
    ZygoteEvent,
    ZygoteReady,
)
from tidegate.ports.rpc import RpcClient, RpcServer
from tidegate.protocol.messages import Message, RegisterTaskManager, TaskManagerAccepted
from tidegate.protocol.versions import PYTHON, TIDEGATE

ENDED = 3
"""Exit status of a TaskManager that ended itself: refused, cut off, or without its zygote."""
RETRY_PAUSE_S = 0.5
"""Between two tries of a standing one to register: a JobManager is back within seconds."""
TELL_INTERVAL_S = 30.0
"""It says again so often that it still waits."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SendDue:
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class _ZygoteIsReady:
    pid: int


_Event = m.Event | PendingRequest | _SendDue | _ZygoteIsReady


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
    """Serve until the JobManager is lost; returns the exit status.

    One that was started by a JobManager is given its `epoch`; it fails with RpcError when it cannot
    register, and whoever started it starts another. Without an epoch it is a standing one, which
    waits until a JobManager answers and joins that.
    """
    loop: EventLoop[_Event] = EventLoop(drivers.clock, drivers.threads)
    zygote = processes.start_zygote(
        {"task_manager": id_, "task_manager_pid": drivers.process.pid},
        log=f"{id_}.zygote.log",
        listener=lambda event: loop.post(_from_zygote(event)),
    )
    server: RpcServer | None = None
    jobmanager = drivers.rpc.connect(jobmanager_address)
    try:
        server = drivers.rpc.serve(
            lambda message: loop.ask(lambda question: question, message), port
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
        patience_s = 0.0 if epoch is not None else math.inf
        reply = _register(jobmanager, joins, drivers.clock, patience_s)
        if not isinstance(reply, TaskManagerAccepted):
            _log.error("not accepted by the JobManager: %s", reply)
            return ENDED
        service = _Service(
            loop=loop,
            zygote=zygote,
            jobmanager=jobmanager,
            heartbeat_s=_heartbeat_s(config, standing=epoch is None),
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
        zygote.close()
        jobmanager.close()
        if server is not None:
            server.close()


def _heartbeat_s(config: Config, *, standing: bool) -> float:
    """One that a JobManager has started dies with it, and has no news in its heartbeats; a standing
    one learns from them that there is another JobManager to join.
    """
    cluster = config.cluster
    return (cluster.heartbeat_interval if standing else cluster.quiet_interval) / 1000


def _answer_s(config: Config) -> float:
    """How long a reply may take: behind a lost one there is time for the next heartbeat before
    either side gives the other up, unless heartbeats come as seldom as is allowed.
    """
    return config.cluster.heartbeat_timeout / 1000 / 4


def _register(
    jobmanager: RpcClient, message: RegisterTaskManager, clock: Clock, patience_s: float
) -> Message:
    """The JobManager's reply; RpcError when none has come within the patience.

    To repeat it is safe: the same registration is accepted again.
    """
    began_s = clock.monotonic()
    tell_s = began_s
    while True:
        try:
            reply: Message = jobmanager.call(message)
        except RpcError as error:
            now_s = clock.monotonic()
            if now_s - began_s >= patience_s:
                raise
            if now_s >= tell_s:
                _log.warning("waiting for the JobManager: %s", error)
                tell_s = now_s + TELL_INTERVAL_S
            clock.sleep(RETRY_PAUSE_S)
        else:
            return reply


@dataclass(slots=True, kw_only=True)
class _Service:
    """The machine and what it gives instructions to."""

    loop: EventLoop[_Event]
    zygote: ForkServer
    jobmanager: RpcClient
    heartbeat_s: float
    answer_s: float
    machine: m.TaskManagerMachine
    drivers: Drivers
    _pending_requests: dict[int, PendingRequest] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def handle(self, event: _Event) -> None:
        match event:
            case PendingRequest():
                ask = next(self._numbers)
                self._pending_requests[ask] = event
                self._decide(m.JobManagerRequest(ask=ask, message=event.message))
            case _SendDue(message=message):
                self._send(message)
            case _ZygoteIsReady(pid=pid):
                _log.info("zygote %d is ready", pid)
            case m.HeartbeatDue():
                self.loop.call_later(self.heartbeat_s, event)
                self._decide(event)
            case _:
                self._decide(event)

    def _decide(self, event: m.Event) -> None:
        if isinstance(event, m.Forked | m.NotForked | m.SlotProcessExited | m.ZygoteGone):
            _log.info("%s", event)
        for instruction in self.machine.handle(event, _ms(self.drivers)):
            self._carry_out(instruction)

    def _carry_out(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.Reply(ask=ask, message=message):
                self._pending_requests.pop(ask).reply(message)
            case m.ForkSlot(start=start):
                self.zygote.fork(start)
            case m.KillSlot(pid=pid):
                self.zygote.kill(pid)
            case m.SendToJobManager(message=message, after_ms=0):
                self._send(message)
            case m.SendToJobManager(message=message, after_ms=after_ms):
                self.loop.call_later(after_ms / 1000, _SendDue(message=message))
            case m.ExitProcess(reason=reason):
                _log.error("this TaskManager ends: %s", reason)
                self.loop.stop()

    def _send(self, message: Message) -> None:
        def failed(error: TidegateError) -> _Event:
            _log.warning("%s", error)
            return m.RequestFailed(message=message)

        self.loop.submit(
            lambda: self.jobmanager.call(message, self.answer_s),
            lambda reply: m.Replied(message=message, reply=reply),
            failed,
        )


def _from_zygote(event: ZygoteEvent) -> _Event:
    match event:
        case ZygoteReady(pid=pid):
            return _ZygoteIsReady(pid=pid)
        case SlotForked(index=index, pid=pid):
            return m.Forked(index=index, pid=pid)
        case SlotNotForked(index=index, reason=reason):
            return m.NotForked(index=index, reason=reason)
        case SlotEnded(index=index, pid=pid, status=status):
            return m.SlotProcessExited(index=index, pid=pid, status=status)
        case ZygoteEnded(status=status):
            return m.ZygoteGone(status=status)


def _ms(drivers: Drivers) -> int:
    return int(drivers.clock.monotonic() * 1000)
