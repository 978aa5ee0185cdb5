"""The driver of a backfill. It runs wave after wave until the sources are at their ends.

    claim -> recover -> restore -> run the tasks -> check -> publish -> commit -> settle -> clean up

A wave is an attempt of the job, and the driver is the JobMaster of that attempt. If a driver dies,
the next claim settles its work: it commits a publication that is written, and aborts every
transaction that no publication lists. So a run continues from the last publication, which may be
that of a driver or of a live job.

Invariants:

- A wave is published only if each task has one report, and all reports come from one consistent
  execution (`checkpoint/run_check.py`).
- A publication holds every subtask and every split of the plan. The offset of each split is its
  cut, which is the end of the split in this wave.
- The manifest has the ends of the backfill, not those of the wave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from tidegate.backfill.executor import Executor, WaveTasks
from tidegate.backfill.progress import commit_to_groups
from tidegate.backfill.refusals import (
    refuse_records_without_schema,
    refuse_unknown_steps,
    refuse_unread_sources,
)
from tidegate.checkpoint.coordinator_events import PublishCheckpoint
from tidegate.checkpoint.pending import union
from tidegate.checkpoint.run_check import check_runs
from tidegate.checkpoint.wave_cuts import cut_wave, limit_by_time, offsets_left
from tidegate.commit.timeouts import wave_timeout_ms
from tidegate.config import Config
from tidegate.controlplane.jobmaster.restarts import restart_strategy
from tidegate.controlplane.journal.effect_runner import ProcedureStopped
from tidegate.controlplane.journal.job_journal import JobJournal
from tidegate.controlplane.journal.job_plan import JobPlan, plan_job
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.errors import (
    Domain,
    FencedError,
    IncompleteWaveError,
    InternalError,
    JobClosedError,
    TidegateError,
    check,
    is_recoverable,
)
from tidegate.graph.levels import levels
from tidegate.ids import CheckpointId, SubtaskId
from tidegate.message_text import counted
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.protocol.errors import kind_of
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import Deploy
from tidegate.protocol.reports import add_counts
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import SourceSplit, SubtaskSnapshot
from tidegate.protocol.waves import TaskReport

TRIES: Final = 5
"""Maximum number of runs of one wave before the backfill fails. The job's restart strategy may fail
it earlier."""
PAUSE_S: Final = 1.0
"""Pause before the second run of a wave, in seconds. It doubles before each further run."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveCompleted:
    """A wave that is published and committed."""

    attempt: int
    records_in: int
    records_out: int
    skipped: int
    """Number of records that a policy skipped."""
    dead_letters: int
    """Number of records that a policy sent to a dead-letter topic."""
    late: Mapping[str, int]
    """Number of records that came too late for their windows, by the uid of the step."""
    seconds: float
    offsets_left: int
    hidden_offsets: int
    """Number of offsets that the backfill does not read, because open transactions hid them when
    its ends were chosen. The next run of the job reads them."""


WaveLoop = Callable[[Callable[[], bool]], None]
"""Calls a function that runs the next wave, until that function returns True."""


def run_in_turn(run_wave: Callable[[], bool]) -> None:
    """Run one wave after the other in this thread."""
    while not run_wave():
        pass


class Backfill:
    """Runs the waves of one submission. One thread calls it."""

    def __init__(
        self,
        submission: Submission,
        config: Config,
        drivers: Drivers,
        executor: Executor,
        *,
        wave_offsets: int,
        wave_span_ms: int | None = None,
        on_wave: Callable[[WaveCompleted], None] = lambda _: None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create a backfill of a bounded submission.

        `wave_offsets` is the number of offsets that a wave reads, in all partitions together. With
        `wave_span_ms`, a wave also ends at the next multiple of this time. `wanted` returns whether
        the job still belongs to this submission. It is called before each claim.
        """
        check(submission.bounded, "a backfill has an end")
        self._submission, self._config, self._drivers = submission, config, drivers
        self._executor, self._on_wave = executor, on_wave
        self._wave_offsets, self._wave_span_ms = wave_offsets, wave_span_ms
        self._journal = JobJournal(submission, config, drivers, wanted=wanted)
        self._stop: Callable[[], bool] = lambda: False
        self._admin: KafkaAdmin | None = None
        self._transaction_timeout_ms = 0
        self._size = 0
        """The number of offsets of the present wave. 0 until its ends are chosen."""
        self._slowest: TaskReport | None = None
        """The slowest task of the last run of a wave. None if that run returned no reports."""
        self._restarts = restart_strategy(config.restart, drivers.entropy.random)
        self._finished = False

    def run(self, loop: WaveLoop = run_in_turn, stop: Callable[[], bool] = lambda: False) -> bool:
        """Run wave after wave. Return True if the sources are at their ends and the journal is
        closed.

        `loop` calls the waves. `stop` is called between waves, and between the runs of one wave. If
        it returns True, this method returns False, and the journal stays open for another run.

        This method raises an error that another run of the wave cannot solve, or did not solve. It
        also raises KeyboardInterrupt. In both cases the publications stay, open transactions are
        aborted, and the next run continues. Before any claim, `executor.check` may refuse the
        settings.
        """
        self._finished, self._stop = False, stop
        self._executor.check(self._config)
        try:
            loop(lambda: stop() or self._run_wave_or_retry() or stop())
            if self._finished:
                self._journal.close(JobState.FINISHED.outcome, "")
        except KeyboardInterrupt:
            self._journal.disconnect()  # it may have been interrupted in the middle of a request
            self._abort_open(IncompleteWaveError("The wave was abandoned."))
            raise
        finally:
            self._journal.disconnect()
            admin, self._admin = self._admin, None
            if admin is not None:
                admin.close()
        return self._finished

    def _run_wave_or_retry(self) -> bool:
        """Run the next wave, and repeat it if it fails. Return True if the loop must end."""
        clock = self._drivers.clock
        for failures in range(1, TRIES + 1):
            began_s = clock.monotonic()
            try:
                self._finished = self._run_wave(self._plan())
            except ProcedureStopped:
                raise FencedError(self._superseded()) from None
            except JobClosedError as error:
                # A driver before this one closed the journal and died.
                self._finished = error.outcome == JobState.FINISHED.outcome
                if not self._finished:
                    raise
            except TidegateError as error:
                took_s = clock.monotonic() - began_s
                pause_s = self._pause_after(error)
                if failures == TRIES or pause_s is None:
                    self._abort_open(error)
                    if self._outlived(took_s):
                        error.add_note(self._slowness(took_s))
                    raise
                if self._stop():
                    self._abort_open(error)
                    return True
                _log.warning("the wave is run again: %s", error)
                self._halve_after(took_s)
                clock.sleep(max(pause_s, PAUSE_S * 2 ** (failures - 1)))
                continue
            return self._finished
        raise InternalError("a wave is run at least once")

    def _superseded(self) -> str:
        return (
            f"Job {self._submission.job!r} was submitted again while this backfill ran, and now"
            " belongs to the new submission. The backfill has claimed nothing since then. Check"
            " which cluster or command runs the job, then run this command again."
        )

    def _pause_after(self, error: TidegateError) -> float | None:
        """Return the seconds until the wave may run again. Return None if another run cannot help,
        or if the job's restart strategy would also fail a live job.
        """
        if isinstance(error, IncompleteWaveError):
            return 0.0  # Spark ran a task again, but the job itself did not fail
        if not is_recoverable(error):
            return None
        return self._restarts.next_backoff(self._drivers.clock.monotonic())

    def _halve_after(self, seconds: float) -> None:
        """Make the next waves half as large as the failed wave, if it took longer than its
        transactions may be open, because this can be the reason of the failure. The failed wave may
        be much smaller than the configured size.
        """
        if self._size > 1 and self._outlived(seconds):
            self._wave_offsets = self._size // 2
            _log.warning(
                "the wave of %s took %d s, but its transactions may be open for only %d s: the next"
                " waves read %s",
                counted(self._size, "offset"),
                seconds,
                self._transaction_timeout_ms // 1000,
                counted(self._wave_offsets, "offset"),
            )

    def _outlived(self, seconds: float) -> bool:
        """Return whether a wave that has read records took longer than its transactions may be
        open.
        """
        return self._size > 0 and 0 < self._transaction_timeout_ms <= seconds * 1000

    def _slowness(self, seconds: float) -> str:
        """Return a note that names the slowest task and the settings that help."""
        open_s = self._transaction_timeout_ms / 1000
        slow = self._slowest
        slowest = f" The slowest task was {slow.task}: {slow.seconds:.0f} s." if slow else ""
        return (
            f"The wave took {seconds:.0f} s, and the brokers abort its transactions after"
            f" {open_s:.0f} s (transaction.max.timeout.ms).{slowest} Set a smaller --wave-records,"
            " or a larger transaction.max.timeout.ms, or use more cores."
        )

    def _abort_open(self, failure: TidegateError) -> None:
        """Abort the open transactions of the failed wave with a recovery. Otherwise readers of the
        sink topics would wait for them. The journal stays open for the next run.

        A recovery that receives a failure instead of a plan restores nothing. It therefore does not
        request a deleted topic again. At its end, it raises the failure.
        """
        try:
            self._journal.recover(failure, lambda _: None)
        except TidegateError as error:
            if error is not failure:
                _log.warning("the wave's transactions stay open until their timeout: %s", error)

    def _plan(self) -> JobPlan:
        code = self._journal.fetch_code()
        if isinstance(code, TidegateError):
            raise code
        plan = plan_job(self._submission, self._config, code)
        refuse_unknown_steps(plan.graph)
        refuse_records_without_schema(plan.graph)
        return plan

    def _run_wave(self, plan: JobPlan) -> bool:
        """Run the next wave. Return True if no wave is left."""
        clock = self._drivers.clock
        began_s = clock.monotonic()
        self._size = 0
        recovered = self._journal.recover(plan, lambda _: None)
        if recovered.finished:
            return True
        refuse_unread_sources(plan.graph, recovered.restore_plan.sources_without_position)
        tasks = self._tasks(plan, recovered)
        self._slowest = None
        reports = self._executor.run(tasks)
        self._slowest = max(reports, key=lambda each: each.seconds, default=None)
        raise_task_error(reports)
        check_runs(plan.plan, reports)
        complete = self._complete(plan, recovered, tasks, reports)
        self._journal.publish(complete)
        self._journal.commit()
        commit_to_groups(
            self._kafka(),
            self._submission.job,
            tasks.deploys[0].journal_id,
            complete.checkpoint,
            complete.snapshots,
        )
        self._journal.clean_up()
        self._on_wave(
            WaveCompleted(
                attempt=recovered.attempt,
                records_in=sum(report.records_in for report in reports),
                records_out=sum(report.records_out for report in reports),
                skipped=sum(report.skipped for report in reports),
                dead_letters=sum(report.dead_letters for report in reports),
                late=add_counts(report.late for report in reports),
                seconds=clock.monotonic() - began_s,
                offsets_left=sum(
                    offsets_left(split) for part in complete.snapshots for split in part.splits
                ),
                hidden_offsets=recovered.restore_plan.hidden_offsets,
            )
        )
        return complete.final

    def _tasks(self, plan: JobPlan, recovered: RecoveredJob) -> WaveTasks:
        splits = [split for part in recovered.restore_plan.splits for split in part]
        cut = {_split_key(split): split for split in self._cut(splits)}
        self._size = sum(map(offsets_left, cut.values()))
        limit_ms = self._kafka().transaction_max_timeout_ms()
        self._transaction_timeout_ms = wave_timeout_ms(limit_ms, self._config.checkpoint)

        def deploy(ordinal: int) -> Deploy:
            deployed = recovered.deploy(ordinal, ())
            return msgspec.structs.replace(
                deployed,
                splits=tuple(cut[_split_key(split)] for split in deployed.splits),
                producer_pool_size=1,
                transactional_ids_per_subtask=1,
                transaction_timeout_ms=self._transaction_timeout_ms,
            )

        return WaveTasks(
            levels=len(levels(plan.plan)),
            deploys=tuple(map(deploy, range(self._submission.parallelism))),
        )

    def _cut(self, splits: Sequence[SourceSplit]) -> tuple[SourceSplit, ...]:
        """Return the splits with their ends in the next wave."""
        limited = tuple(splits)
        if self._wave_span_ms is not None:
            topic_partitions, admin = [split.topic_partition for split in splits], self._kafka()
            limited = limit_by_time(
                splits,
                lambda time_ms: admin.at_time(topic_partitions, time_ms),
                self._wave_span_ms,
                self._drivers.clock.now_ms(),
            )
        return cut_wave(limited, self._wave_offsets)

    def _kafka(self) -> KafkaAdmin:
        if self._admin is None:
            self._admin = self._drivers.kafka_admin(self._config.kafka.client_settings())
        return self._admin

    def _complete(
        self,
        plan: JobPlan,
        recovered: RecoveredJob,
        tasks: WaveTasks,
        reports: Sequence[TaskReport],
    ) -> PublishCheckpoint:
        """Return the checkpoint of a wave from the reports of all its tasks."""
        snapshots = with_ends(
            [snapshot for report in reports for snapshot in report.snapshots],
            tasks.deploys,
            [split for part in recovered.restore_plan.splits for split in part],
        )
        found = [SubtaskId(part.vertex, part.index) for part in snapshots]
        check(
            len(found) == len(plan.subtasks) and plan.subtasks == set(found),
            "a wave's snapshots are not those of the plan's subtasks",
        )
        return PublishCheckpoint(
            checkpoint=CheckpointId(recovered.attempt, 1),
            final=not any(offsets_left(split) for part in snapshots for split in part.splits),
            snapshots=snapshots,
            transactions=union([part.transactions for part in snapshots]),
        )


def raise_task_error(reports: Sequence[TaskReport]) -> None:
    """Raise the most useful error of the reports, if a report has an error.

    An internal error precedes a user's error, and both precede an external one. The errors of
    receivers that stopped because their sender failed come last.
    """
    errors = [(report.task, report.error) for report in reports if report.error is not None]
    if not errors:
        return
    order = {Domain.INTERNAL: 0, Domain.USER: 1, Domain.EXTERNAL: 2}
    _, error = min(
        errors,
        key=lambda one: (
            one[1].kind == kind_of(IncompleteWaveError),
            order[one[1].domain],
            one[0],
        ),
    )
    raised = error.exception()
    if error.traceback:
        raised.add_note(error.traceback)  # the user's frames in another process
    raise raised


def with_ends(
    snapshots: Sequence[SubtaskSnapshot],
    deploys: Sequence[Deploy],
    splits: Sequence[SourceSplit],
) -> tuple[SubtaskSnapshot, ...]:
    """Return the snapshots in order, with the ends of the backfill in their splits.

    Raise InternalError unless they hold each of `splits` once, at its cut. A missing split would be
    read again from the start of its partition.
    """
    cuts = {_split_key(split): split.end_offset for deploy in deploys for split in deploy.splits}
    ends = {_split_key(split): split.end_offset for split in splits}
    reached = {_split_key(split): split.offset for part in snapshots for split in part.splits}
    held = sum(len(part.splits) for part in snapshots)
    check(
        held == len(splits) and reached.keys() == ends.keys() == cuts.keys(),
        "a wave does not hold each split once",
    )
    for key, offset in reached.items():
        check(offset == cuts[key], f"{key} was read to {offset} and not to its cut {cuts[key]}")
    return tuple(
        msgspec.structs.replace(
            part,
            splits=tuple(
                msgspec.structs.replace(split, end_offset=ends[_split_key(split)])
                for split in part.splits
            ),
        )
        for part in sorted(snapshots, key=lambda part: (part.vertex, part.index))
    )


def _split_key(split: SourceSplit) -> tuple[str, str, int]:
    return split.source, split.topic, split.partition
