"""The report of a job: its state, its counts and its errors, for people and for waiting clients.

A JobMaster collects a JobReport and sends it to the JobManager in a ReportJob. The JobManager adds
what only it knows. It shows reports to clients, as the reply to GetJob and in a JobList. It stores
the last report of an ended job as `result.json`, so the names of the fields are a disk format.
Fields are only ever added, with a default.

A report does not prove anything about the output of a job. It may be old, or a newer report may
replace it before it is delivered. Invariant: no process restores, commits or aborts anything
because of a report. Only the journal decides what counts. Almost all fields are for display only.
There are two exceptions:

- The JobManager supervises JobMasters by `state`, `attempt`, `jobmaster_pid`, `planned` and
  `checkpoints_completed`.
- Clients wait for a `state`. They also read `epoch` and `start_refused`, and they choose the exit
  code of a command from the last report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tidegate.ids import JobName, SlotId
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import LeaderMessage, Message
from tidegate.protocol.slot_metrics import HangingCall


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """The end of an attempt and its reason, for the list of restarts."""

    attempt: int
    ended_ms: int
    """The wall-clock time of the end, in ms."""
    error: ErrorReport


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint."""

    id: str
    completed_ms: int
    """The wall-clock time of the completion, in ms."""
    duration_ms: int
    size: int
    """The size of the keyed state to which the checkpoint refers, in bytes."""
    transactions: int
    alignment_ms: int = 0
    """The longest time from the first barrier to the last in any subtask, in ms."""
    sync_ms: int = 0
    """The longest time for which any subtask processed no records because of its snapshot, in
    ms."""


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of the live attempt."""

    ordinal: int
    slot: SlotId
    pid: int
    task_manager_pid: int
    host: str = ""
    """The name of the host on which the slot and its TaskManager run. It is empty in a report of an
    older version."""


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """The exit of a process of the cluster, as the operating system reported it to the parent."""

    kind: str
    """The role of the process: `slot`, `taskmanager` or `jobmaster`."""
    pid: int
    status: int
    """The exit code, or the negative number of the signal that ended the process."""
    ended_ms: int
    """The wall-clock time when the JobManager learned about the exit, in ms."""


class JobReport(Message, frozen=True, kw_only=True, tag="JobReport"):
    """The state of a job, as its JobMaster last reported it. The JobManager sends it to a client as
    the reply to GetJob.
    """

    job: JobName
    state: JobState
    attempt: int = 0
    restarts: int = 0
    jobmaster_pid: int = 0
    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    lag: int | None = None
    """The number of records between the last record that was read and the end of the source
    partitions. It is None if it is not known."""
    watermark_ms: int | None = None
    """The least watermark of the sources and of the steps with their own time, in ms since the Unix
    epoch. It is None if the job has no watermarks, or if all partitions are idle. It is also None
    until each partition, and each subtask of such a step, has had a record."""
    watermark_held_by: str = ""
    """The source and the partition, or the step and the subtask, that hold the watermark back."""
    backward_watermarks: int = 0
    """The number of watermarks that were behind the one before, and were ignored."""
    late: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of records that came too late for their windows, by the uid of the step."""
    processing_backlog: bool = msgspec.field(default=False, name="backlog")
    """True if the job processes a backlog. The time between two checkpoints is then
    `checkpoint.interval_during_backlog`."""
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    last_checkpoint: CheckpointReport | None = None
    slots: tuple[SlotReport, ...] = ()
    slots_missing: int = 0
    """The number of slots of the attempt that have not registered."""
    hidden_offsets: int = 0
    """The number of offsets that a bounded run does not read, because open transactions hid them
    when the run began."""
    waiting_for: str = ""
    """A text that says what the job waits for, with the last error of a request that is repeated
    meanwhile. It is empty if the job does not wait, or has waited for less than ten seconds."""
    waiting_since_ms: int = 0
    """The wall-clock time when this wait began, in ms."""
    error: ErrorReport | None = None
    """The error of a failed job. For a job that was restarted, this is the error that ended its
    last attempt."""
    failed_attempts: tuple[AttemptReport, ...] = msgspec.field(default=(), name="history")
    """The last attempts that ended with an error, oldest first. The JobManager adds the attempts of
    earlier JobMasters."""
    process_exits: tuple[ProcessExit, ...] = msgspec.field(default=(), name="exits")
    """The last processes of the cluster that ended, oldest first. The JobManager adds them when it
    replies to GetJob."""
    notes: tuple[str, ...] = ()
    """Facts about this run that the operator must know, in sentences."""
    hanging_calls: tuple[HangingCall, ...] = ()
    """The calls of user code that have not returned for ten seconds or longer."""
    epoch: int = 0
    """The leader epoch of the JobManager that replies to GetJob. The JobManager adds it. A new
    JobManager knows only what is in the storage, so a client must repeat a stop."""
    reported_ms: int = 0
    """The wall-clock time of the report, in ms."""
    storage_trouble: str = ""
    """The reason why the checkpoint storage cannot be used at present. It is empty if the storage
    can be used."""
    stopped: str = ""
    """The way in which a user's stop ended a finished job, as a `StopEnd`. It is empty if no stop
    ended the job."""
    planned: bool = True
    """True if the JobMaster has a plan of the job. Before that, it fetches the code and imports it.
    During the import it sends no report."""
    jobmanager_pid: int = 0
    """The process id of the JobManager that replies to GetJob. The JobManager adds it."""
    host: str = ""
    """The name of the host on which the JobManager and the JobMaster run. The JobManager adds
    it."""
    start_refused: str = ""
    """The reason why the JobMaster of the job cannot start at present, in sentences. The JobManager
    adds it. It is empty if a JobMaster runs or may start."""

    def differs_from(self, before: JobReport | None) -> bool:
        """Return whether any field except `reported_ms` differs from `before`."""
        if before is None:
            return True
        return msgspec.structs.replace(self, reported_ms=before.reported_ms) != before


class JobList(Message, frozen=True, kw_only=True, tag="JobList"):
    """All jobs and TaskManagers of the cluster. The JobManager sends it to a client as the reply to
    ListJobs.
    """

    jobs: tuple[JobReport, ...]
    task_managers: tuple[tuple[str, int, int], ...] = ()
    """The id, the pid and the number of slots of each TaskManager."""


class ReportJob(LeaderMessage, frozen=True, kw_only=True, tag="ReportJob"):
    """The message of a JobMaster to the JobManager with a new report. It is also the heartbeat of
    the JobMaster.

    The JobMaster sends a report at every change of the state, and every half second if another
    field has changed. Without news it sends one every `cluster.quiet_interval`. The JobManager
    acknowledges a report when it has received it, and the report of an ended job when that is
    stored. It refuses a report if it has another JobMaster for the job. The refused JobMaster
    exits.
    """

    report: JobReport


def add_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of counts by name."""
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total
