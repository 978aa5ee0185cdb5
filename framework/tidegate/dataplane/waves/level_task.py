"""`LevelTask`: the subtasks of one level with one index, run for one wave.

A level task does what a slot does in one barrier interval. It restores, reads rows or splits, sends
rows, takes one snapshot, and reports when the whole snapshot is durable. It runs in one thread of a
process that another system owns (a worker of Spark). Nothing of the task outlives `run`.

A failure of tidegate or of user code leaves as a report, and a row tells its receivers to stop.
Spark therefore repeats tasks that crashed, and the driver decides about all others.

Invariant: every run of a task has its own transactional ids, files and local folder. A run that
continues as a zombie changes nothing of another run.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.checkpoint.wave_cuts import offsets_left
from tidegate.config import Config
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.channels.plan_channels import PlanChannels
from tidegate.dataplane.channels.record_writer import OutputChannel, RemoteOutputChannel
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.engine import Engine
from tidegate.dataplane.shared_transaction_admin import SharedTransactionAdmin
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.state.local_state_dir import ATTEMPTS_RETAINED, LocalStateDir
from tidegate.dataplane.task import Task
from tidegate.dataplane.task_builder import SlotContext, TaskBuilder
from tidegate.dataplane.waves.order import TimedSource, poll_shares
from tidegate.dataplane.waves.receiving import RowReceiver
from tidegate.dataplane.waves.sending import RowSender
from tidegate.errors import KafkaError, StorageError, check
from tidegate.graph.levels import level_of, levels
from tidegate.graph.plan import PhysicalPlan, PlanEdge, Vertex
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import CheckpointId, SubtaskId, SubtaskIndex, VertexId
from tidegate.masking import masked_text
from tidegate.ports.drivers import Drivers
from tidegate.ports.threads import WorkerPool
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import Deploy
from tidegate.protocol.subtask_snapshot import SubtaskSnapshot
from tidegate.protocol.waves import LAST, Row, TaskId, TaskReport, report_row
from tidegate.stream_elements import Barrier
from tidegate.user_exceptions import process_ends, text_of


class RowChannels(PlanChannels):
    """The input gates and record writers of one task. `inputs` are by edge and sender.

    Credit is unlimited. The frames that a task sends leave with its rows. The frames that it
    receives are processed before the next row is read.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: StreamGraph,
        *,
        ordinal: int,
        vertices: Sequence[Vertex],
        sender: RowSender,
    ) -> None:
        self._sender = sender
        self.inputs: dict[tuple[int, int], InputChannel] = {}
        super().__init__(plan, graph, ordinal=ordinal, vertices=vertices)

    def _input(self, edge: PlanEdge, sender: SubtaskIndex) -> InputChannel:
        channel = InputChannel(edge, sender, sys.maxsize, self._codec(edge))
        self.inputs[edge.index, sender] = channel
        return channel

    def _channel(self, edge: PlanEdge, receiver: SubtaskIndex) -> OutputChannel:
        self._sender.open(edge.index, receiver)
        send = partial(self._sender.send, edge.index, receiver)
        return RemoteOutputChannel(self._codec(edge), sys.maxsize, send)


RUN_BYTES: Final = 8
FLUSH_RECORDS: Final = 4096
"""Number of records read after which channels are flushed, so that rows of all senders meet about
as they would in a live job. It grows with the parallelism: a frame holds up to 512 records.
"""
WAIT_S: Final = 0.05
"""Seconds of a wait for records or I/O. A post ends a wait for I/O."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHost:
    """The objects that a task gets from the process that it runs in."""

    drivers: Drivers
    io: WorkerPool
    """I/O threads that outlive the task, because a worker runs many tasks."""
    shared_admin: SharedTransactionAdmin | None = None
    """The client that tasks share if they run one at a time."""


class LevelTask:
    """One run of the task of `level` with the index `deploy.ordinal`.

    `number` is unique among all runs of the attempt. Transactional ids end with it.
    """

    def __init__(self, deploy: Deploy, level: int, host: TaskHost, number: int) -> None:
        self._deploy, self._level = deploy, level
        self._host, self._number = host, number
        self._config = Config.from_dict(self._deploy.submission.settings)
        self.run_id = host.drivers.entropy.token_hex(RUN_BYTES)
        self._sender = RowSender(self._deploy.ordinal, bytes.fromhex(self.run_id))
        self._started_s = host.drivers.clock.monotonic()
        self._engine = Engine(host.drivers.threads, self._fail, host.io)
        self._counters = Counters()
        self._failure: BaseException | None = None
        self._checkpoint = CheckpointId(self._deploy.attempt, 1)
        self._snapshots: dict[SubtaskId, SubtaskSnapshot] = {}
        self._tasks: list[Task] = []
        self._steps: list[Callable[[float], bool]] = []
        """The step function of each task, in the order of the tasks."""
        self._task_builder: TaskBuilder | None = None
        self._receiver: RowReceiver | None = None

    def run(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """Run to the end of the wave. Yield the rows that the task sends, piece by piece, then its
        report.
        """
        try:
            yield from self._run(rows)
            yield [report_row(self._report(None))]
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver is told
            report = ErrorReport.of(error)
            _log.error("a task of a wave failed", extra={"error": report.message})
            self._sender.fail()
            yield [*self._sender.take(), report_row(self._report(report))]
        finally:
            self._close()

    def _run(self, rows: Iterable[Row]) -> Iterator[list[Row]]:
        deploy = self._deploy
        local = self._local_folder()
        assembly = self._task_builder = TaskBuilder(
            deploy,
            SlotContext(
                config=self._config,
                drivers=self._host.drivers,
                counters=self._counters,
                local=local.path,
                earlier=local.files_of_earlier_waves(f"{deploy.ordinal}-*"),
                engine=self._engine,
                checkpoint_responder=self,
                run=self.run_id,
                first_transactional_id_index=self._number,
                shared_admin=self._host.shared_admin,
                ends_input=False,
            ),
        )
        vertices = levels(assembly.plan)[self._level]
        channels = RowChannels(
            assembly.plan,
            assembly.graph,
            ordinal=deploy.ordinal,
            vertices=vertices,
            sender=self._sender,
        )
        self._tasks = assembly.tasks(channels, vertices)
        self._steps = [task.step for task in self._tasks]
        for task in self._tasks:
            task.chain.open()
        if self._level == 0:
            yield from self._read_splits()
        else:
            yield from self._read_rows(rows, channels, assembly)
        self._await_snapshots()
        yield self._sender.take()

    def _read_splits(self) -> Iterator[list[Row]]:
        """Read every split to its end, then inject the barrier."""
        timed = self._timed_sources()
        sources = [source.task for source in timed]
        self._steps = [source.step for source in timed]
        for source in sources:
            source.start()
        flush_records = FLUSH_RECORDS * max(1, self._deploy.submission.parallelism // 8)
        flush_at = flush_records
        clock = self._host.drivers.clock
        idle_since_s = clock.monotonic()
        while not all(source.has_ended() for source in sources):
            if self._turn():
                idle_since_s = clock.monotonic()
            elif not all(source.has_ended() for source in sources):
                self._wait(timed)
                self._fail_if_idle(sources, clock.monotonic() - idle_since_s)
            if self._counters.records_in >= flush_at:
                for each in timed:
                    each.flush()
                flush_at = self._counters.records_in + flush_records
            yield self._sender.take()
        for source in sources:
            source.trigger(Barrier(self._checkpoint, final=True))
        while self._turn():
            pass

    def _timed_sources(self) -> list[TimedSource]:
        sources = [task for task in self._tasks if isinstance(task, SourceTask)]
        check(len(sources) == len(self._tasks), "level 0 has a vertex that is not a source")
        offsets = dict.fromkeys((each.subtask.vertex for each in sources), 0)
        for split in self._deploy.splits:
            offsets[VertexId(split.source)] += offsets_left(split)
        shares = poll_shares(offsets)
        for each in sources:
            each.reader.limit_polls(shares[each.subtask.vertex])
        now_ms = self._host.drivers.clock.now_ms()
        return [TimedSource(each, self._sender, now_ms) for each in sources]

    def _read_rows(
        self, rows: Iterable[Row], channels: RowChannels, assembly: TaskBuilder
    ) -> Iterator[list[Row]]:
        """Process the rows of this task. Pass on the rows for later levels or for the driver."""
        receiver = self._receiver = RowReceiver(
            channels.inputs, level_of(assembly.plan), self._checkpoint
        )
        gates = [channels.gate(task.subtask.vertex) for task in self._tasks]
        own = {edge for edge, _ in channels.inputs}
        for row in rows:
            if row.edge not in own:
                yield [row]
                continue
            receiver.accept(row)
            if self._sender.ord < row.ord < LAST:
                self._sender.ord = row.ord
            self._turn()
            while any(gate.available() for gate in gates):
                if not self._turn():
                    self._engine.mailbox.wait(WAIT_S)  # a sink waits for its producer
            yield self._sender.take()
        receiver.finish()

    def _turn(self) -> bool:
        """Run the posted actions and one step of each subtask. Return whether there was anything to
        do.
        """
        posted = self._engine.mailbox.has_posts()
        self._engine.mailbox.run_posted()
        worked = False
        for step in self._steps:
            worked |= step(0.0)
        if self._failure is not None:
            raise self._failure
        return worked or posted

    def _await_snapshots(self) -> None:
        """Wait until everything that the subtasks have made is durable.

        A storage that hangs reports no error. Silence for `checkpoint.timeout` therefore counts as
        its failure.
        """
        clock = self._host.drivers.clock
        last_progress_s, stored = clock.monotonic(), self._counters.files_stored
        while len(self._snapshots) < len(self._tasks):
            if self._turn() or stored != self._counters.files_stored:
                last_progress_s, stored = clock.monotonic(), self._counters.files_stored
            elif (clock.monotonic() - last_progress_s) * 1000 >= self._config.checkpoint.timeout:
                waiting = [each.subtask for each in self._tasks]
                waiting = [each for each in waiting if each not in self._snapshots]
                raise StorageError(
                    f"The output and state of {', '.join(map(str, waiting))} were not stored, and"
                    f" neither Kafka nor {masked_text(self._config.checkpoint.dir)} said"
                    f" anything for {self._config.checkpoint.timeout / 1000:g} s"
                    " (checkpoint.timeout). The wave runs again."
                )
            else:
                self._engine.mailbox.wait(WAIT_S)

    def _wait(self, sources: list[TimedSource]) -> None:
        """Wait for records, or for I/O if no source can read."""
        readable = [source for source in sources if source.task.reads()]
        for source in readable:
            source.step(WAIT_S / len(readable))
        if not readable:
            self._engine.mailbox.wait(WAIT_S)

    def _fail_if_idle(self, sources: list[SourceTask], idle_s: float) -> None:
        """Raise KafkaError after `checkpoint.tolerated_outage` without records. All records of the
        splits exist, so the silence is an outage.
        """
        if idle_s * 1000 < self._config.checkpoint.tolerated_outage:
            return
        errors = " ".join(error for source in sources if (error := source.connection_error()))
        raise KafkaError(
            f"No record came for {idle_s:.0f} s (checkpoint.tolerated_outage), and the splits of "
            f"the wave are not at their ends. {errors or 'The brokers answer.'}"
        )

    def _local_folder(self) -> LocalStateDir:
        submission = self._deploy.submission
        root = Path(
            submission.working_folder,
            self._config.state.local_dir,
            submission.job,
            self._deploy.journal_id,
        )
        local = LocalStateDir(root, self._deploy.attempt, f"{self._deploy.ordinal}-{self.run_id}")
        local.make()
        self._engine.run_io(lambda: local.remove_earlier(keep=ATTEMPTS_RETAINED), None)
        return local

    # --- reports of subtasks (CheckpointResponder) ----------------------------------------------

    def acknowledge(
        self,
        checkpoint: CheckpointId,
        snapshot: SubtaskSnapshot,
        *,
        alignment_ms: int,
        sync_ms: int,
    ) -> None:
        """Note that a subtask's part of the wave is durable."""
        del alignment_ms, sync_ms
        check(checkpoint == self._checkpoint, "a snapshot is not of the wave's checkpoint")
        self._snapshots[SubtaskId(snapshot.vertex, snapshot.index)] = snapshot

    def decline(self, checkpoint: CheckpointId, subtask: SubtaskId, reason: str) -> None:
        """Fail the task, because a subtask's part of the wave could not be stored."""
        self._fail(StorageError(f"Checkpoint {checkpoint} of {subtask}: {reason}"), subtask)

    def input_ended(self, subtask: SubtaskId) -> None:
        """Fail, because a wave ends with a barrier and never with the end of the input."""
        check(False, f"the input of {subtask} ended in a wave")

    # --- the end --------------------------------------------------------------------------------

    def _fail(self, error: BaseException, subtask: SubtaskId | None) -> None:
        del subtask
        if self._failure is None:
            self._failure = error

    def _report(self, error: ErrorReport | None) -> TaskReport:
        counters = self._counters
        return TaskReport(
            attempt=self._deploy.attempt,
            task=TaskId(self._level, self._deploy.ordinal),
            run=self.run_id,
            snapshots=() if error is not None else tuple(self._snapshots.values()),
            consumed=() if self._receiver is None else self._receiver.consumed(),
            records_in=counters.records_in,
            records_out=counters.records_out,
            skipped=counters.skipped,
            dead_letters=counters.dead_letters,
            late=dict(counters.late),
            seconds=self._host.drivers.clock.monotonic() - self._started_s,
            error=error,
        )

    def _close(self) -> None:
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
        self._tasks = []  # drops the producers; prepared transactions stay open
        if self._task_builder is not None:
            self._task_builder.close()
