"""The JobManager process: carries out the instructions of Dispatcher and ResourceManager.

At its start it binds its port, claims a leader epoch and reads the jobs that it must recover. Only
then it announces its address, so a client that finds the JobManager also finds its jobs. The main
thread runs the event loop. RPC threads, threads that wait for child processes, and worker threads
only post events to it. The JobManager imports no user code, and all processes that it started end
with it.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

import msgspec

from tidegate.config import Config, flattened, refuse_foreign_code
from tidegate.controlplane.jobmanager import dispatcher_events as jobs
from tidegate.controlplane.jobmanager import resource_manager_events as slots
from tidegate.controlplane.jobmanager.cluster_settings import apply_cluster_settings, missing_secret
from tidegate.controlplane.jobmanager.connections import Connections
from tidegate.controlplane.jobmanager.dispatcher import Dispatcher
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.controlplane.jobmanager.leadership import Action, Leadership
from tidegate.controlplane.jobmanager.resource_manager import ResourceManager
from tidegate.controlplane.loop import EventLoop, PendingRequest
from tidegate.errors import (
    ConfigError,
    ExternalError,
    ResourceExhaustedError,
    StorageGoneError,
    TidegateError,
    check,
)
from tidegate.ids import JobName, LeaderEpoch, TaskManagerId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.clock import Clock
from tidegate.ports.drivers import Drivers
from tidegate.ports.processes import NO_RESOURCES, Child, ExitStatus, Processes
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import (
    Message,
    Refused,
    RegisterTaskManager,
    ReleaseSlots,
    RequestSlots,
    SlotExited,
    SlotLost,
    StartSlot,
    StopSlot,
    SubmitJob,
    TaskManagerHeartbeat,
)
from tidegate.protocol.reports import JobList, JobReport, ProcessExit
from tidegate.protocol.versions import difference

WORKERS = 32
"""Number of threads for calls to other processes. A call to a process that hangs blocks its thread
for up to ten seconds."""

REPLACED = 4
"""Exit status of a JobManager that a newer one has replaced. If it is started again, it in turn
fences the newer one."""

EXITS_SHOWN = 50
"""Maximum number of process exits that reports contain."""

STORAGE_PAUSE_S: Final = 0.5
"""Seconds between two checks whether a missing storage is back."""

_log = logging.getLogger(__name__)


_Event = jobs.Event | slots.Event | PendingRequest | Action
"""An event of a machine, a message of another process, or a function that the loop only calls."""

RESOURCE_MANAGER_MESSAGES = (
    RegisterTaskManager,
    TaskManagerHeartbeat,
    SlotExited,
    RequestSlots,
    ReleaseSlots,
)


def run_jobmanager(
    cluster: str,
    config: Config,
    drivers: Drivers,
    processes: Processes,
    *,
    announce: Callable[[Mapping[str, object]], None],
    session_cluster: bool = False,
    storage: str = "",
) -> int:
    """Serve until this process ends. Return the exit status: REPLACED if a newer JobManager leads.

    With `session_cluster` this is the JobManager of a session cluster. It uses the configured port,
    waits for TaskManagers instead of starting them, and replaces some settings of each submission
    with its own (`apply_cluster_settings`).

    `storage` is the id of the checkpoint storage, if an earlier process has read it. If the storage
    is gone when the JobManager is started again, it waits for the storage with this id.

    `announce` receives `address`, `epoch`, `pid` and the id of the `storage`. Raise StorageError if
    the storage cannot be used.
    """
    blobs = drivers.blob_store(config.checkpoint.dir)
    if storage:  # before the probe, which would write to a mount point with no storage mounted
        _wait_for_storage(blobs, storage, drivers.clock)
    if session_cluster:  # the client of a local cluster has already probed the storage
        allowed = config.checkpoint.allow_network_filesystem
        blobs.probe(allow_network_filesystem=allowed)
    identity = blobs.identify()
    store = JobStore(blobs, cluster, config.to_dict())
    loop: EventLoop[_Event] = EventLoop(drivers.clock, drivers.threads, workers=WORKERS)
    # The port comes first. A JobManager that finds the port in use must not claim a newer epoch,
    # because that would end the JobManager that uses the port.
    with closing(
        drivers.rpc.serve(
            lambda message: loop.request(lambda pending_request: pending_request, message),
            config.jobmanager.port if session_cluster else 0,
        )
    ) as server:
        epoch = store.claim_epoch(drivers.entropy.token_hex(8))
        service = JobManager(
            epoch=epoch,
            address=server.address,
            config=config,
            loop=loop,
            store=store,
            drivers=drivers,
            processes=processes,
            dispatcher=Dispatcher(cluster, epoch, config.cluster.heartbeat_timeout, identity),
            resources=ResourceManager(
                epoch,
                0 if session_cluster else config.cluster.task_managers,
                config.cluster.heartbeat_timeout,
            ),
            session_cluster=session_cluster,
            connections=Connections(drivers.rpc, drivers.threads),
        )
        try:
            service.start()
            facts = {"address": server.address, "epoch": epoch, "storage": identity}
            announce({**facts, "pid": drivers.process.pid})
            loop.run(service.handle)
            return REPLACED if service.replaced else 0
        finally:
            loop.close()
            service.end_children()
            service.connections.close()


def _wait_for_storage(blobs: BlobStore, storage: str, clock: Clock) -> None:
    """Bind `blobs` to the storage with this id. Return when that storage is there."""
    blobs.bind(storage)
    told = False
    while True:
        try:
            blobs.confirm()
        except StorageGoneError as error:
            if not told:
                _log.error("the JobManager waits: %s", error)
                told = True
            clock.sleep(STORAGE_PAUSE_S)
        else:
            return


@dataclass(slots=True, kw_only=True)
class JobManager:
    """Both machines, and the objects that carry out their instructions.

    The methods run in the loop's thread.
    """

    epoch: LeaderEpoch
    address: str
    config: Config
    loop: EventLoop[_Event]
    store: JobStore
    drivers: Drivers
    processes: Processes
    dispatcher: Dispatcher
    resources: ResourceManager
    connections: Connections
    session_cluster: bool
    _children: dict[int | str, Child] = field(default_factory=dict)
    """Children that have not exited: JobMasters by launch id, TaskManagers by id."""
    _pending_requests: dict[int, PendingRequest] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _exits: deque[ProcessExit] = field(default_factory=lambda: deque(maxlen=EXITS_SHOWN))
    _leadership: Leadership = field(init=False)

    def __post_init__(self) -> None:
        self._leadership = Leadership(
            self.store,
            self.dispatcher.cluster,
            self.epoch,
            self.loop,
            local=not self.session_cluster,
        )

    @property
    def replaced(self) -> bool:
        """Whether a newer JobManager leads the cluster."""
        return self._leadership.replaced

    def start(self) -> None:
        """Start TaskManagers, recover jobs and start the ticks."""
        for instruction in self.resources.start(self._now_ms()):
            self._execute_resource_manager(instruction)
        recovered = self.store.jobs()
        for submission, result in recovered:
            _log.info("job %s: %s", submission.job, result.state if result else "recovered")
        for order in self.dispatcher.recover(recovered, self._now_ms()):
            self._execute_dispatcher(order)
        self._tick()

    def handle(self, event: _Event) -> None:
        """Handle one event of the loop."""
        if callable(event):
            event()
            return
        match event:
            case PendingRequest():
                self._handle_request(event)
            case jobs.DispatcherTick() | slots.ResourceManagerTick():
                self._tick()
            case (
                slots.SlotStarted()
                | slots.SlotNotStarted()
                | slots.SlotStopped()
                | slots.SlotNotStopped()
                | slots.TaskManagerExited()
                | slots.JobReleased()
                | slots.ResourceRequestReceived()
            ):
                self._feed_resource_manager(event)
            case jobs.JobMasterExited(launch_id=launch_id, status=status):
                self._child_exited("jobmaster", self._children.pop(launch_id, None), status)
                self._feed_dispatcher(event)
            case _:
                self._feed_dispatcher(event)

    def end_children(self) -> None:
        """Kill the remaining child processes. The children of these end with them."""
        for child in self._children.values():
            child.kill()

    def _tick(self) -> None:
        self.loop.call_later(self.config.cluster.heartbeat_interval / 1000, jobs.DispatcherTick())
        self._feed_dispatcher(jobs.DispatcherTick())
        self._feed_resource_manager(slots.ResourceManagerTick())
        self._leadership.check_periodically(self._now_ms())

    def _handle_request(self, pending_request: PendingRequest) -> None:
        request_id = next(self._numbers)
        self._pending_requests[request_id] = pending_request
        message = pending_request.message
        if isinstance(message, RequestSlots) and (
            self.dispatcher.runs_at(message.job) != message.jobmaster_address
        ):
            reason = f"the sender is not the JobMaster of {message.job} any more"
            self._reply(request_id, Refused(reason=reason))
        elif isinstance(message, RESOURCE_MANAGER_MESSAGES):
            if isinstance(message, SlotExited):
                _log.info("%s", message)
                self._note_exit("slot", message.pid, message.status)
            elif isinstance(message, RegisterTaskManager):
                self.connections.invalidate(message.address)
            self._feed_resource_manager(
                slots.ResourceRequestReceived(request_id=request_id, message=message)
            )
        elif isinstance(message, SubmitJob):
            self._submitted(request_id, message)
        else:
            self._feed_dispatcher(jobs.RequestReceived(request_id=request_id, message=message))

    def _submitted(self, request_id: int, message: SubmitJob) -> None:
        """Check a submission and give it to the Dispatcher.

        The client of a session cluster may have other settings and other versions. Other versions
        are refused, and settings that start foreign code are refused here too: the client may not
        have checked them. The cluster's own settings replace the client's.
        """
        submission = message.submission
        why_not = None
        digest = None if submission.code is None else submission.code.digest
        if digest is not None and hashlib.sha256(message.code).hexdigest() != digest:
            why_not = f"The code of job {submission.job} was damaged on its way. Submit it again."
        elif self.session_cluster:
            versions = submission.tidegate_version, submission.python_version
            why_not = difference("The client", *versions) or missing_secret(submission, self.config)
        try:
            refuse_foreign_code(flattened(submission.settings), f"job {submission.job}")
        except ConfigError as error:
            why_not = str(error)
        if why_not is not None:
            self._reply(request_id, Refused(reason=why_not))
            return
        if self.session_cluster:
            imposed = msgspec.structs.replace(
                apply_cluster_settings(submission, self.config), session_cluster=True
            )
            message = msgspec.structs.replace(message, submission=imposed)
        self._feed_dispatcher(jobs.RequestReceived(request_id=request_id, message=message))

    # --- the Dispatcher's instructions

    def _feed_dispatcher(self, event: jobs.Event) -> None:
        now_ms, wall_ms = self._now_ms(), self.drivers.clock.now_ms()
        for instruction in self.dispatcher.handle(event, now_ms, wall_ms):
            self._execute_dispatcher(instruction)

    def _execute_dispatcher(self, instruction: jobs.Instruction) -> None:
        match instruction:
            case jobs.Reply(request_id=request_id, message=message):
                self._reply(request_id, message)
            case jobs.StoreSubmission(submission=submission, code=code):
                job = submission.job
                self._leadership.run_if_leader(
                    functools.partial(self.store.put_submission, submission, code),
                    functools.partial(self._submission_stored, job),
                    lambda error: jobs.SubmissionNotStored(job=job, error=ErrorReport.of(error)),
                    accept=functools.partial(self.store.accept, job),
                )
            case jobs.StoreResult():
                self._store_result(instruction)
            case jobs.StoreClaim(job=job, attempt=attempt):
                self._leadership.run_if_leader(
                    functools.partial(self.store.put_claim, job, attempt),
                    _nothing,
                    _logged(jobs.ClaimNotStored(job=job)),
                )
            case jobs.ScheduleStart(job=job, launch_id=launch_id, after_ms=after_ms):
                self.loop.call_later(
                    after_ms / 1000, jobs.StartDelayElapsed(job=job, launch_id=launch_id)
                )
            case jobs.StartJobMaster():
                self._start_if_leading(instruction)
            case jobs.KillJobMaster(job=job, launch_id=launch_id, reason=reason):
                _log.warning("the JobMaster of %s is killed: %s", job, reason)
                self._kill(launch_id)
            case jobs.ForwardStop():
                self._forward_stop(instruction)
            case jobs.ReleaseJobSlots(job=job):
                self._feed_resource_manager(slots.JobReleased(job=job))

    def _submission_stored(self, job: JobName) -> None:
        self._feed_dispatcher(jobs.SubmissionStored(job=job, code=self.store.stored_code(job)))

    def _store_result(self, instruction: jobs.StoreResult) -> None:
        report = instruction.report
        job, stored = report.job, jobs.ResultStored(job=report.job)
        not_stored = _logged(jobs.ResultNotStored(job=job))
        _log.info("job %s has ended: %s", job, report.state)

        def store() -> None:
            self.store.put_result(report)

        def look() -> None:
            if self.store.has_moved(job):
                self.loop.post(stored)
            else:
                _log.warning("job %s was fenced by a JobMaster that had counted as lost", job)
                self.loop.post(jobs.JobStillOwned(job=job))

        if instruction.fenced:
            self._leadership.run_if_leader(look, _nothing, not_stored)
        else:
            self._leadership.run_if_leader(store, stored, not_stored)

    def _start_if_leading(self, start: jobs.StartJobMaster) -> None:
        """Start a JobMaster when the storage confirms that this JobManager leads.

        While the storage does not answer, the JobMaster could not claim the journal anyway.
        """
        begin = functools.partial(self._start_jobmaster, start.job, start.launch_id)
        if not self.session_cluster:
            begin()
            return

        def put_off(error: TidegateError) -> _Event:
            _log.warning("the JobMaster of %s is not started yet: %s", start.job, error)
            again = functools.partial(self._start_if_leading, start)
            self.loop.call_later(self.config.cluster.heartbeat_interval / 1000, again)
            return _nothing

        self._leadership.run_if_leader(None, begin, put_off)

    def _start_jobmaster(self, job: JobName, launch_id: int) -> None:
        def exited(status: int) -> None:
            self.loop.post(jobs.JobMasterExited(job=job, launch_id=launch_id, status=status))

        try:
            child = self.processes.spawn(
                "jobmaster",
                {
                    "job": job,
                    "jobmanager_address": self.address,
                    "epoch": self.epoch,
                },
                log=str(PurePosixPath(job) / "jobmaster.log"),
                on_exit=exited,
            )
        except ExternalError as error:
            _log.warning("the JobMaster of %s could not be started: %s", job, error)
            failed = jobs.JobMasterExited(
                job=job,
                launch_id=launch_id,
                status=None,
                reason=str(error),
                refused=isinstance(error, ResourceExhaustedError),
            )
            self.loop.post(failed)
            return
        self._children[launch_id] = child
        _log.info("JobMaster of %s is process %d", job, child.pid)
        self._feed_dispatcher(jobs.JobMasterStarted(job=job, launch_id=launch_id, pid=child.pid))

    def _forward_stop(self, stop: jobs.ForwardStop) -> None:
        not_taken = jobs.StopNotAccepted(job=stop.job, launch_id=stop.launch_id)

        def done(reply: Message) -> _Event:
            return not_taken if isinstance(reply, Refused) else _nothing

        self._call(stop.address, stop.message, done, _logged(not_taken))

    # --- the ResourceManager's instructions

    def _feed_resource_manager(self, event: slots.Event) -> None:
        if isinstance(event, slots.TaskManagerExited):
            self._child_exited("taskmanager", self._children.pop(event.id, None), event.status)
            _log.warning("%s", event)
        for instruction in self.resources.handle(event, self._now_ms()):
            self._execute_resource_manager(instruction)

    def _execute_resource_manager(self, instruction: slots.Instruction) -> None:
        match instruction:
            case slots.Reply(request_id=request_id, message=message):
                self._reply(request_id, message)
            case slots.StartSlotAt():
                self._start_slot(instruction)
            case slots.StopSlotAt():
                self._stop_slot(instruction)
            case slots.NotifyJobMaster(address=address, message=message):
                if isinstance(message, SlotLost):
                    _log.warning("%s", message)
                self._call(address, message, lambda _: _nothing, _logged(_nothing))
            case slots.StartTaskManager(id=id_, after_ms=0):
                self._start_task_manager(id_)
            case slots.StartTaskManager(id=id_, after_ms=after_ms):
                self.loop.call_later(
                    after_ms / 1000, functools.partial(self._start_task_manager, id_)
                )
            case slots.DisconnectTaskManager(id=id_, reason=reason):
                _log.warning("TaskManager %s counts as lost: %s", id_, reason)
                self._kill(id_)

    def _start_slot(self, start: slots.StartSlotAt) -> None:
        submission = self.dispatcher.submission(start.job)
        message = StartSlot(
            epoch=self.epoch,
            index=start.slot.index,
            ordinal=start.ordinal,
            job=start.job,
            attempt=start.attempt,
            jobmaster_address=start.jobmaster_address,
            working_folder=submission.working_folder,
            settings=submission.settings,
            allocation_id=start.allocation_id,
        )
        not_started = functools.partial(
            slots.SlotNotStarted, slot=start.slot, allocation_id=start.allocation_id
        )

        def done(reply: Message) -> _Event:
            if isinstance(reply, Refused):
                return not_started(reason=reply.reason)
            return slots.SlotStarted(slot=start.slot, allocation_id=start.allocation_id)

        self._call(start.address, message, done, lambda error: not_started(reason=str(error)))

    def _stop_slot(self, stop: slots.StopSlotAt) -> None:
        message = StopSlot(
            epoch=self.epoch,
            index=stop.slot.index,
            job=stop.job,
            attempt=stop.attempt,
            allocation_id=stop.allocation_id,
        )
        not_stopped = slots.SlotNotStopped(slot=stop.slot, allocation_id=stop.allocation_id)

        def done(reply: Message) -> _Event:
            if isinstance(reply, Refused):
                return not_stopped
            return slots.SlotStopped(slot=stop.slot, allocation_id=stop.allocation_id)

        self._call(stop.address, message, done, _logged(not_stopped))

    def _start_task_manager(self, id_: TaskManagerId) -> None:
        try:
            self._children[id_] = self.processes.spawn(
                "taskmanager",
                {
                    "id": id_,
                    "jobmanager_address": self.address,
                    "epoch": self.epoch,
                    "slots": self.config.taskmanager.slots,
                },
                log=f"{id_}.log",
                on_exit=lambda status: self.loop.post(
                    slots.TaskManagerExited(id=id_, status=status)
                ),
            )
        except ExternalError as error:
            _log.warning("TaskManager %s could not be started: %s", id_, error)
            refused = isinstance(error, ResourceExhaustedError)
            status = NO_RESOURCES if refused else -1
            self.loop.post(slots.TaskManagerExited(id=id_, status=status, reason=str(error)))

    # --- both

    def _call(
        self,
        address: str,
        message: Message,
        done: Callable[[Message], _Event],
        failed: Callable[[TidegateError], _Event],
    ) -> None:
        self.loop.submit(lambda: self.connections.call(address, message), done, failed)

    def _reply(self, request_id: int, message: Message) -> None:
        pending_request = self._pending_requests.pop(request_id, None)
        check(pending_request is not None, "A request was answered twice.")
        if pending_request is not None:
            if isinstance(message, JobList):
                message = msgspec.structs.replace(
                    message, task_managers=self.resources.task_managers()
                )
            elif isinstance(message, JobReport):
                message = msgspec.structs.replace(
                    self.resources.explain(message),
                    process_exits=tuple(self._exits),
                    epoch=self.epoch,
                    jobmanager_pid=self.drivers.process.pid,
                    host=self.drivers.process.host,
                )
            pending_request.reply(message)

    def _child_exited(self, kind: str, child: Child | None, status: ExitStatus | None) -> None:
        if child is not None and status is not None:
            self._note_exit(kind, child.pid, status)

    def _note_exit(self, kind: str, pid: int, status: ExitStatus) -> None:
        """Record the exit of a process, for display only. A repeated report is recorded once."""
        if all(known.pid != pid for known in self._exits):
            ended_ms = self.drivers.clock.now_ms()
            self._exits.append(ProcessExit(kind=kind, pid=pid, status=status, ended_ms=ended_ms))

    def _kill(self, key: int | str) -> None:
        child = self._children.get(key)
        if child is not None:
            child.kill()

    def _now_ms(self) -> int:
        return int(self.drivers.clock.monotonic() * 1000)


def _nothing() -> None:
    """Do nothing: the event after a call whose outcome needs no decision."""


def _logged(event: _Event) -> Callable[[TidegateError], _Event]:
    def failed(error: TidegateError) -> _Event:
        _log.warning("%s", error)
        return event

    return failed
