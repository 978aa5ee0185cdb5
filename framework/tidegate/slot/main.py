"""The main of a slot process: one loop that runs the slot's subtasks in turn, a batch at a time.

The TaskManager forks a slot for one attempt of one job. The slot listens for control messages and
for its peers, and registers with the JobMaster. It builds its subtasks when it is deployed, runs
them until the attempt ends, and exits. It decides nothing about checkpoints or restarts.

The mailbox thread (this loop) runs all code of the data plane. gRPC threads check the attempt of a
message and post it to the mailbox. I/O threads flush, describe and upload, and post their results.
The exchange has one thread of its own. The first failure in any thread ends the attempt: the slot
reports it to the JobMaster, and the process exits.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Final

import msgspec

from tidegate.config import Config
from tidegate.dataplane.channels.slot_channels import SlotChannels
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.engine import Engine
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.state.local_state_dir import ATTEMPTS_RETAINED, LocalStateDir
from tidegate.dataplane.task import Task
from tidegate.dataplane.task_builder import SlotContext, TaskBuilder
from tidegate.errors import ExchangeError, TidegateError, signal_handler_error
from tidegate.ids import CheckpointId, SlotId, SubtaskId, TaskManagerId
from tidegate.ports.drivers import Drivers
from tidegate.ports.exchange import Exchange
from tidegate.ports.processes import CallWatch
from tidegate.protocol.code_places import CodePlace, WatchedCode
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import (
    Acknowledge,
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    CloseTasks,
    DeclineCheckpoint,
    Deploy,
    DrainSources,
    Message,
    Refused,
    RegisterSlot,
    SlotCommand,
    SlotHeartbeat,
    StartSlot,
    StartSources,
    SubtaskInputEnded,
    TaskFailed,
    TasksReady,
    TriggerCheckpoint,
)
from tidegate.protocol.slot_metrics import HangingCall, SlotMetrics
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.protocol.versions import PYTHON, TIDEGATE
from tidegate.slot.idle_wait import IdleWait
from tidegate.slot.jobmaster_gateway import JobMasterGateway
from tidegate.slot.progress_news import ProgressNews
from tidegate.slot.user_code import places_of
from tidegate.stream_elements import Barrier
from tidegate.user_exceptions import process_ends, text_of

FLUSH_INTERVAL_S: Final = 0.01
"""The longest time, in seconds, for which a busy slot holds back half-full frames. It keeps records
moving in a channel that carries few records."""

DUE_WAIT_MIN_S: Final = 0.001
"""The shortest wait, in seconds, for a watermark or a timer that is due by the clock."""

BUSY_WAIT_SHARE_MAX: Final = 0.5
MEASURE_INTERVAL_S: Final = 0.05
"""A slot counts as busy if it waited for records for less than `BUSY_WAIT_SHARE_MAX` of the
time between two measurements. The time between two measurements is at least `MEASURE_INTERVAL_S`,
in seconds.
"""

LAG_INTERVAL_S: Final = 0.5
"""The time between two updates of the lag that a heartbeat reports, in seconds. The mailbox thread
asks the consumers for the lag. A consumer serves one thread at a time, so the heartbeat thread
would have to wait for as long as the slot waits for records.
"""

LOST_PEER_GRACE_S: Final = 2.0
"""The delay, in seconds, before a slot reports that it lost a peer. Most likely the peer was killed
or failed first. The report of that failure reaches the JobMaster sooner and explains more. This
slot's report counts only if no other report has ended the attempt by then."""

STALLED_AFTER_S: Final = 6.0
"""The time in seconds after which a slot in which no thread can run is reported."""

_log = logging.getLogger(__name__)


def run_slot(
    start: StartSlot, drivers: Drivers, task_manager: TaskManagerId, task_manager_pid: int
) -> int:
    """Run the slot until its attempt ends. Return the exit code of the process."""
    slot = Slot(start, drivers, SlotId(task_manager, start.index), task_manager_pid)
    return slot.run()


class Slot:
    """The part of one attempt of a job that runs in this process."""

    _calls: CallWatch
    _idling: IdleWait
    _code: WatchedCode | None = None
    """The places of user code. None before the deployment."""

    def __init__(
        self, start: StartSlot, drivers: Drivers, slot: SlotId, task_manager_pid: int
    ) -> None:
        self._start, self._drivers, self._slot = start, drivers, slot
        self._task_manager_pid = task_manager_pid
        self._config = Config.from_dict(start.settings)
        self._receive_lock, self._last_sequence = drivers.threads.lock(), 0
        """The number of the last command that this slot accepted."""
        self._counters, self._news = Counters(), ProgressNews()
        self._engine = Engine(drivers.threads, self._fail)
        self._mailbox = self._engine.mailbox
        self._tasks: list[Task] = []
        self._sources: list[SourceTask] = []
        self._has_remote_inputs = False
        """Whether records may come from other slots."""
        self._failed = False
        self._exit_code: int | None = None
        self._lag: int | None = None
        self._watermark: tuple[int, str] | None = None
        """The least watermark of the slot's sources, and the partition that holds it back."""
        self._source_error = ""
        self._busy = False
        self._waited_s, self._measured_s = 0.0, -math.inf
        """The seconds that the slot has waited for records since the last measurement, and the
        monotonic time of that measurement."""
        self._local: LocalStateDir | None = None
        self._completed = False
        """Whether this attempt has completed a checkpoint."""
        self._exchange: Exchange | None = None
        self._jobmaster_gateway = JobMasterGateway(
            client=drivers.rpc.connect(start.jobmaster_address),
            clock=drivers.clock,
            threads=drivers.threads,
            config=self._config,
            on_lost=self._on_jobmaster_lost,
        )

    def run(self) -> int:
        """Register, then loop until the attempt ends."""
        server = self._drivers.rpc.serve(self._handle)
        start = self._start
        self._drivers.process.guard_signal_handlers(
            lambda error, signal: self._engine.post_failure(
                signal_handler_error(signal, error), None
            )
        )
        self._calls = self._drivers.process.watch_calls(_stalled_after_s(self._config))
        exchange = self._exchange = self._drivers.exchange(
            job=start.job, attempt=start.attempt, ordinal=start.ordinal
        )
        self._jobmaster_gateway.send(
            RegisterSlot(
                job=start.job,
                attempt=start.attempt,
                ordinal=start.ordinal,
                slot=self._slot,
                pid=self._drivers.process.pid,
                task_manager_pid=self._task_manager_pid,
                address=server.address,
                exchange_address=exchange.address,
                allocation_id=start.allocation_id,
                tidegate_version=TIDEGATE,
                python_version=PYTHON,
                host=self._drivers.process.host,
            )
        )
        self._jobmaster_gateway.start_heartbeat(
            start.job, start.attempt, start.ordinal, self._metrics
        )
        try:
            self._loop()
        finally:
            exchange.close()
            if self._exit_code == 0 and self._local is not None:
                self._local.remove_all()
        return self._exit_code or 0

    # --- the loop -------------------------------------------------------------------------------

    def _loop(self) -> None:
        clock = self._drivers.clock
        checkpoint = self._config.checkpoint
        idling = self._idling = IdleWait(
            checkpoint.interval / 1000, checkpoint.interval_when_idle / 1000, clock.monotonic()
        )
        self._calls.turn_s = clock.monotonic()
        flush_at = look_at = clock.monotonic() + FLUSH_INTERVAL_S
        while True:
            stirred = self._mailbox.has_posts()
            self._engine.run_guarded(self._mailbox.run_posted, None)
            if self._exit_code is not None:
                # Closed tasks must not run: their state is released, but their output would still
                # be visible.
                return
            worked = False
            for task in self._tasks:
                worked |= self._step(task, 0.0)
            if self._news.take(self._counters.progress()):
                self._send_progress()
            self._calls.turn_s = now = clock.monotonic()
            if not worked or now >= flush_at:
                for task in self._tasks:
                    self._engine.run_guarded(task.flush, task.subtask)
                flush_at = now + FLUSH_INTERVAL_S
            if now >= look_at:
                self._engine.run_guarded(self._update_lag, None)
                look_at = now + LAG_INTERVAL_S
            idling.record_turn(now, self._counters.batches, woken=stirred or worked)
            # A snapshot that is being saved posts its next piece, so the loop does not wait.
            if not worked and not self._mailbox.has_posts():
                due_in_s = min((task.due_in_s() for task in self._tasks), default=math.inf)
                idle_s = idling.wait_s(now, has_remote_inputs=self._has_remote_inputs)
                self._wait(min(idle_s, max(due_in_s, DUE_WAIT_MIN_S)))

    def _step(self, task: Task, timeout_s: float) -> bool:
        if self._failed:
            return False
        try:
            return task.step(timeout_s)
        except process_ends():
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is ends the attempt
            self._fail(error, task.subtask)
            return False

    def _wait(self, timeout_s: float) -> None:
        """Wait for records, or for posts if no source can read."""
        readable = [source for source in self._sources if source.reads()]
        if not readable or self._failed:
            self._mailbox.wait(timeout_s)
            return
        clock = self._drivers.clock
        began_s = clock.monotonic()
        for source in readable:
            self._step(source, timeout_s / len(readable))
        self._waited_s += clock.monotonic() - began_s

    # --- control messages -----------------------------------------------------------------------

    def _handle(self, message: Message) -> Message:
        """Check the attempt of a message and post the message to the mailbox. RPC threads call
        this.
        """
        start = self._start
        own = (start.job, start.attempt)
        if not isinstance(message, SlotCommand) or (message.job, message.attempt) != own:
            return Refused(reason=f"this slot runs attempt {start.attempt} of {start.job}")
        with self._receive_lock:
            if 0 < message.sequence <= self._last_sequence:
                return Acknowledge()  # a repeated try: its answer was lost, or it arrives late
            self._last_sequence = max(self._last_sequence, message.sequence)
            self._mailbox.post(lambda: self._handle_command(message))
        return Acknowledge()

    def _handle_command(self, message: Message) -> None:  # noqa: C901 - one arm for each message
        if self._exit_code is not None or (self._failed and not isinstance(message, CloseTasks)):
            return
        match message:
            case Deploy():
                self._deploy(message)
            case StartSources():
                for source in self._sources:
                    source.start()
            case DrainSources():
                for source in self._sources:
                    source.drain()
            case TriggerCheckpoint():
                self._idling.record_barrier(self._drivers.clock.monotonic())
                for source in self._sources:
                    source.trigger(Barrier(message.checkpoint, final=message.final))
            case CheckpointCompleted():
                if not self._completed and self._local is not None:
                    self._completed = True  # this shows that every slot of the attempt has restored
                    self._engine.run_io(self._local.remove_earlier, None)
                for task in self._tasks:
                    task.checkpoint_completed(
                        message.checkpoint, committed=message.committed, reusable=message.reusable
                    )
            case CheckpointAborted():
                for task in self._tasks:
                    task.checkpoint_aborted(message.checkpoint)
            case CloseTasks():
                self._exit(0)
            case _:
                _log.warning(
                    "a slot got a message that is not for it",
                    extra={"kind": type(message).__name__},
                )

    def _deploy(self, deploy: Deploy) -> None:
        if self._tasks:
            return  # repeated delivery
        local = self._local = self._make_local_state_dir(deploy.journal_id)
        task_builder = TaskBuilder(
            deploy,
            SlotContext(
                config=self._config,
                drivers=self._drivers,
                counters=self._counters,
                local=local.path,
                earlier=local.previous_files(),
                engine=self._engine,
                checkpoint_responder=self,
            ),
        )
        channels = SlotChannels(
            task_builder.plan,
            task_builder.graph,
            ordinal=deploy.ordinal,
            initial_credit=self._config.exchange.credits,
            exchange=self._required_exchange(),
        )
        self._tasks = task_builder.tasks(channels)
        channels.connect(
            deploy.peers,
            post=lambda action: self._engine.post(action, None),
            on_lost=lambda _, error: self._peer_lost(error),
        )
        self._sources = [task for task in self._tasks if isinstance(task, SourceTask)]
        self._has_remote_inputs = len(deploy.peers) > 1 and len(self._sources) < len(self._tasks)
        self._describe_code(
            places_of(self._tasks, task_builder.graph, task_builder.plan, deploy.ordinal)
        )
        for task in self._tasks:
            log_generated_code(task)
            task.chain.open()
        self._drivers.process.freeze_gc()  # after the user's modules and their data are loaded
        self._send(TasksReady(job=deploy.job, attempt=deploy.attempt, ordinal=deploy.ordinal))

    def _describe_code(self, places: tuple[CodePlace, ...]) -> None:
        self._code = WatchedCode(
            ordinal=self._start.ordinal,
            thread=self._calls.thread,
            places=places,
            stalled_after_ms=round(_stalled_after_s(self._config) * 1000),
        )
        self._calls.describe(msgspec.json.encode(self._code))

    def _hanging(self) -> HangingCall | None:
        """Return the call of user code that has not returned. Any thread may call this."""
        code = self._code
        call = None if code is None else self._calls.long_call()
        if code is None or call is None:
            return None
        return code.hanging_call(call.frames, call.since_ms)

    def _make_local_state_dir(self, journal_id: str) -> LocalStateDir:
        """Make and return the folder for the slot's local state. The folder is empty."""
        start = self._start
        root = Path(start.working_folder, self._config.state.local_dir, start.job, journal_id)
        local = LocalStateDir(root, start.attempt, f"{start.ordinal}-{start.allocation_id}")
        local.make()
        self._engine.run_io(lambda: local.remove_earlier(keep=ATTEMPTS_RETAINED), None)
        return local

    # --- what subtasks report (CheckpointResponder) ---------------------------------------------

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        snapshot: SubtaskSnapshot,
        *,
        alignment_ms: int,
        sync_ms: int,
    ) -> None:
        """Report that a subtask's part of a checkpoint is durable."""
        self._update_lag()
        metrics = self._metrics()
        self._news.acknowledged(checkpoint, metrics.progress)
        self._send(
            AcknowledgeCheckpoint(
                job=self._start.job,
                attempt=self._start.attempt,
                checkpoint=checkpoint,
                snapshot=snapshot,
                alignment_ms=alignment_ms,
                sync_ms=sync_ms,
                ordinal=self._start.ordinal,
                metrics=metrics,
            )
        )

    def _send_progress(self) -> None:
        """Tell the JobMaster at once that the slot is no longer idle."""
        start = self._start
        self._send(
            SlotHeartbeat(
                job=start.job,
                attempt=start.attempt,
                ordinal=start.ordinal,
                metrics=self._metrics(),
            )
        )

    def decline(self, checkpoint: CheckpointId, subtask: SubtaskId, reason: str) -> None:
        """Report that a subtask could not make its part of a checkpoint. The attempt continues."""
        self._send(
            DeclineCheckpoint(
                job=self._start.job,
                attempt=self._start.attempt,
                checkpoint=checkpoint,
                subtask=subtask,
                reason=reason,
            )
        )

    def input_ended(self, subtask: SubtaskId) -> None:
        """Report that a subtask has processed the last record of a bounded run."""
        self._send(
            SubtaskInputEnded(job=self._start.job, attempt=self._start.attempt, subtask=subtask)
        )

    # --- failures and the end -------------------------------------------------------------------

    def _peer_lost(self, error: ExchangeError) -> None:
        self._engine.run_io(lambda: self._report_lost_peer(error), None)

    def _report_lost_peer(self, error: ExchangeError) -> None:
        self._drivers.clock.sleep(LOST_PEER_GRACE_S)
        self._engine.post_failure(error, None)

    def _fail(self, error: BaseException, subtask: SubtaskId | None) -> None:
        """Report the error to the JobMaster, close the user's functions, and exit. Only the first
        failure counts, and only if the tasks were not closed before.
        """
        if self._failed or self._exit_code is not None:
            return
        self._failed = True
        report = ErrorReport.of(error)
        _log.error(
            "the attempt failed in this slot",
            extra={"subtask": str(subtask), **_error_fields(report)},
        )
        self._jobmaster_gateway.send(
            TaskFailed(
                job=self._start.job, attempt=self._start.attempt, subtask=subtask, error=report
            ),
            then=lambda: self._mailbox.post(lambda: self._exit(1)),
        )

    def _exit(self, code: int) -> None:
        for task in self._tasks:
            try:
                task.close()
            except process_ends():
                raise
            except BaseException as error:  # noqa: BLE001 - the others are closed all the same
                _log.warning(
                    "closing a subtask failed",
                    extra={"subtask": str(task.subtask), "error": text_of(error)},
                )
        self._exit_code = code

    def _on_jobmaster_lost(self, reason: str) -> None:
        """End the process at once, because this slot cannot report to its JobMaster any more. The
        gateway's threads call this.
        """
        _log.warning("slot process exits", extra={"reason": reason})
        self._drivers.process.exit(1)

    # --- helpers --------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        self._jobmaster_gateway.send(message)

    def _metrics(self) -> SlotMetrics:
        """Return the current metrics. Any thread may call this."""
        counters = self._counters
        return SlotMetrics(
            records_in=counters.records_in,
            records_out=counters.records_out,
            skipped=counters.skipped,
            dead_letters=counters.dead_letters,
            lag=self._lag,
            watermark_ms=None if self._watermark is None else self._watermark[0],
            watermark_held_by="" if self._watermark is None else self._watermark[1],
            backward_watermarks=counters.backward_watermarks,
            late=dict(counters.late),
            busy=self._busy,
            source_error=self._source_error,
            restoring=counters.restoring,
            restored_bytes=counters.restored(),
            hanging=self._hanging(),
        )

    def _update_lag(self) -> None:
        lags = [lag for source in self._sources if (lag := source.lag()) is not None]
        self._lag = sum(lags) if lags else None
        watermarks = [each for task in self._tasks if (each := task.slowest_watermark())]
        self._watermark = min(watermarks, default=None)
        errors = [error for source in self._sources if (error := source.connection_error())]
        self._source_error = " ".join(errors)
        now = self._drivers.clock.monotonic()
        elapsed_s = now - self._measured_s
        if elapsed_s >= MEASURE_INTERVAL_S:
            self._busy = self._waited_s < BUSY_WAIT_SHARE_MAX * elapsed_s
            self._waited_s, self._measured_s = 0.0, now

    def _required_exchange(self) -> Exchange:
        if self._exchange is None:
            message = "The slot was deployed before it listened."
            raise TidegateError(message)
        return self._exchange


def _stalled_after_s(config: Config) -> float:
    """Return the time after which a slot in which no thread can run is reported.

    The report must arrive before the slot counts as lost, so that the error can name the call.
    """
    return min(STALLED_AFTER_S, config.cluster.heartbeat_timeout / 1000 / 2)


def log_generated_code(task: Task) -> None:
    """Log the loops that were generated for the task's stateless steps. Each log line holds one
    line of generated code.
    """
    for fused in task.chain.fused:
        for number, line in enumerate(fused.source.splitlines(), 1):
            _log.debug("%s", line, extra={"subtask": str(task.subtask), "fused": number})


def _error_fields(report: ErrorReport) -> dict[str, str]:
    return {"error": report.kind, "why": report.message, "traceback": report.traceback}
