"""Messages between the processes of a cluster.

One struct per message, tagged by its name; `codec.py` writes and reads them. Who sends what:

    client      -> JobManager   SubmitJob, GetJob, ListJobs, StopJob
    JobMaster   -> JobManager   RegisterJobMaster, RequestSlots, ReleaseSlots, ReportJob
    TaskManager -> JobManager   RegisterTaskManager, TaskManagerHeartbeat, SlotExited
    JobManager  -> TaskManager  StartSlot, StopSlot
    JobManager  -> JobMaster    StopJob, SlotLost, SlotsReleased
    slot        -> JobMaster    RegisterSlot, TasksReady, AcknowledgeCheckpoint, DeclineCheckpoint,
                                InputEnded, TaskFailed, SlotHeartbeat
    JobMaster   -> slot         Deploy, StartSources, TriggerCheckpoint, CheckpointCompleted,
                                CheckpointAborted, CloseTasks

Every message to or from a slot carries job and attempt; one of another attempt is refused with
`Refused`, never interpreted. Messages of a JobManager carry its leader epoch. Delivery may repeat
or lose a message: each handler is idempotent or counts by id.
"""

from __future__ import annotations

import msgspec

from tidegate.ids import (
    Attempt,
    CheckpointId,
    JobName,
    LeaderEpoch,
    SlotId,
    SubtaskId,
    TaskManagerId,
    TransactionalId,
    Uid,
)
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.snapshots import KeyedSnapshot, SourceSplit, SubtaskSnapshot


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages. The tag of each class is what it is on the wire, whatever its name."""


# --- replies ------------------------------------------------------------------------------------


class Acknowledge(Message, frozen=True, kw_only=True, tag="Done"):
    """Taken."""


class Refused(Message, frozen=True, kw_only=True, tag="Refused"):
    """Not taken: the sender is of another attempt or an older leader, or asks what cannot be."""

    reason: str


class Failed(Message, frozen=True, kw_only=True, tag="Failed"):
    """The handler raised; the caller raises the same."""

    error: ErrorReport


# --- client -------------------------------------------------------------------------------------


class StoredCode(msgspec.Struct, frozen=True, kw_only=True):
    """The files that every attempt of a submission runs; see `api/archive.py`."""

    digest: str
    """SHA-256 of the archive, in hex."""
    size: int
    """Bytes of all files, unpacked."""
    path: str = ""
    """In the checkpoint storage. The JobManager sets it when it stores the archive."""


class PartitionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bounded run stops in a partition of a source."""

    source: Uid
    topic: str
    partition: int
    offset: int
    """Exclusive."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was submitted: enough to build its graph anew in any process, and to check it."""

    job: JobName
    reference: str
    """`package.module:Class`."""
    working_folder: str
    """Relative paths of settings start here. A submission without `code` is imported from here."""
    params: dict[str, str]
    parallelism: int
    max_parallelism: int
    settings: dict[str, object]
    """The effective configuration, as `Config.to_dict` gives it (secrets included: never
    logged)."""
    fingerprint: str
    code_digest: str
    python_version: str
    tidegate_version: str
    bounded: bool = False
    restore: str = "latest"
    """`latest`, `none`, or a checkpoint id."""
    accept_loss: bool = False
    """The operator accepts the loss that the journal's last `lost` entry states."""
    id: str = ""
    """Random, made by the client: tells a new submit of the job from a restart of an old one."""
    take_over: bool = False
    """Fence transactional ids that another journal under this job's name has left in Kafka."""
    restore_to_other_cluster: bool = False
    """The operator consents: checkpoints of another Kafka cluster may be restored on the present
    one, because every topic has the same offsets there."""
    claimed_attempt: int = 0
    """An attempt of this submission that a JobMaster has reported, added by the JobManager: the
    journal holds its claim. 0: none has been reported."""
    cluster: str = ""
    """The cluster that runs the job: another one on the same storage leaves it alone."""
    epoch: LeaderEpoch = LeaderEpoch(0)
    """The leader epoch of the JobManager that has stored it; 0 if an older version has."""
    code: StoredCode | None = None
    """None in a submission of an older version: it runs the files of the working folder."""
    standing: bool = False
    """The cluster stands by itself: no lock of a command says whether it lives."""
    ends: tuple[PartitionEnd, ...] = ()
    """Of a bounded run whose ends the client has chosen. Empty: the ends of the first attempt. A
    partition that is not among them is not read."""
    to: str = ""
    """How the user said where it ends, in a backfill."""


class SubmitJob(Message, frozen=True, kw_only=True, tag="SubmitJob"):
    """Starts a job; the reply is Done once the job is stored and its JobMaster is on its way."""

    submission: Submission
    code: bytes = b""
    """The archive that `submission.code` names."""


class GetJob(Message, frozen=True, kw_only=True, tag="GetJob"):
    """The reply is a JobReport."""

    job: JobName


class ListJobs(Message, frozen=True, kw_only=True, tag="ListJobs"):
    """The reply is a JobList."""


class StopJob(Message, frozen=True, kw_only=True, tag="StopJob"):
    """`drain=False` cancels: no final checkpoint."""

    job: JobName
    final_checkpoint: bool = True


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt ended, for the restart history."""

    attempt: int
    ended_ms: int
    error: ErrorReport


class CheckpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint, for display."""

    id: str
    completed_ms: int
    duration_ms: int
    size: int
    """Bytes of keyed state that the checkpoint refers to."""
    transactions: int
    alignment_ms: int = 0
    """From the first barrier to the last, in the subtask where that took longest."""
    sync_ms: int = 0
    """For which the subtask stood still that stood longest."""


class SlotReport(msgspec.Struct, frozen=True, kw_only=True):
    """A slot of the live attempt."""

    ordinal: int
    slot: SlotId
    pid: int
    task_manager_pid: int


class ProcessExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process of the cluster ended, as its parent was told by the operating system."""

    kind: str
    """`slot`, `taskmanager` or `jobmaster`."""
    pid: int
    status: int
    """As subprocess gives it: negative is a signal's number."""
    ended_ms: int


class JobReport(Message, frozen=True, kw_only=True, tag="JobReport"):
    """The state of a job as its JobMaster last told it."""

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
    """Records between what was read and the end of the source partitions; None if not known."""
    backlog: bool = False
    """Whether checkpoints come by `checkpoint.interval_during_backlog` for it."""
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    last_checkpoint: CheckpointReport | None = None
    slots: tuple[SlotReport, ...] = ()
    slots_missing: int = 0
    hidden_offsets: int = 0
    """Offsets that a bounded run does not read, because open transactions hid them at its start."""
    waiting_for: str = ""
    """What the job has waited for since `waiting_since_ms`, and the last error of a request that it
    repeats meanwhile; empty if it does not wait or began to less than ten seconds ago."""
    waiting_since_ms: int = 0
    """Wall clock of the JobMaster, for display."""
    error: ErrorReport | None = None
    """Of a failed job; of a restarting one, why its last attempt ended."""
    history: tuple[AttemptReport, ...] = ()
    exits: tuple[ProcessExit, ...] = ()
    """The last processes of the cluster that ended, oldest first; added by the JobManager."""
    notes: tuple[str, ...] = ()
    """What the operator must know of this run, in sentences."""
    epoch: int = 0
    """Of the JobManager that shows it, and added by it: what was asked of an earlier one and is not
    in the storage, this one does not know."""
    reported_ms: int = 0
    storage_trouble: str = ""
    """Why the checkpoint storage cannot be used just now; empty while it can."""
    stopped: str = ""
    """How a user's stop ended a finished job: a `StopEnd`; empty where its input has ended."""
    planned: bool = True
    """False while the JobMaster has no plan of the job: it fetches the code, or imports it and says
    nothing meanwhile."""
    start_refused: str = ""
    """Why the host cannot start the job's JobMaster at present, in sentences; added by the
    JobManager. Empty if a JobMaster runs or may start."""

    def differs_from(self, before: JobReport | None) -> bool:
        """Whether it says anything that `before` does not, but for when."""
        if before is None:
            return True
        return msgspec.structs.replace(self, reported_ms=before.reported_ms) != before


class JobList(Message, frozen=True, kw_only=True, tag="JobList"):
    """All jobs of the cluster and the TaskManagers they may run on."""

    jobs: tuple[JobReport, ...]
    task_managers: tuple[tuple[str, int, int], ...] = ()
    """Of each TaskManager: id, pid, number of slots."""


# --- JobMaster and TaskManager to JobManager ----------------------------------------------------


class RegisterJobMaster(Message, frozen=True, kw_only=True, tag="RegisterJobMaster"):
    """The reply is JobMasterAccepted, or Refused when the process was replaced meanwhile."""

    job: JobName
    epoch: LeaderEpoch
    address: str
    pid: int
    tidegate_version: str = ""
    python_version: str = ""


class JobMasterAccepted(Message, frozen=True, kw_only=True, tag="JobMasterAccepted"):
    """The job that this JobMaster is to run."""

    submission: Submission
    close_only: ErrorReport | None = None
    """Why the job has failed before this JobMaster: it imports no user code, starts no slot, and
    only settles, fences and closes."""
    storage: str = ""
    """The id of the checkpoint storage, see `BlobStore.bind`; empty from an older version."""


class RequestSlots(Message, frozen=True, kw_only=True, tag="RequestSlots"):
    """Asks for `count` slots for one attempt, ordinals 0 to count-1; repeated until they register.

    Slots of older attempts of the job are released by it.
    """

    job: JobName
    epoch: LeaderEpoch
    attempt: Attempt
    count: int
    jobmaster_address: str


class ReleaseSlots(Message, frozen=True, kw_only=True, tag="ReleaseSlots"):
    """The job needs no slot of any attempt up to this one any more: their processes are killed.

    SlotsReleased follows when they are gone.
    """

    job: JobName
    epoch: LeaderEpoch
    attempt: Attempt


class ReportJob(Message, frozen=True, kw_only=True, tag="ReportJob"):
    """Pushed every half second and at every change of state; also the JobMaster's heartbeat."""

    epoch: LeaderEpoch
    report: JobReport


class RegisterTaskManager(Message, frozen=True, kw_only=True, tag="RegisterTaskManager"):
    """Sent once at start; the reply is TaskManagerAccepted, or Refused by another leader."""

    id: TaskManagerId
    epoch: LeaderEpoch | None
    """None from a standing one, which joins whoever leads and learns the epoch from the reply."""
    address: str
    slots: int
    pid: int
    tidegate_version: str = ""
    python_version: str = ""
    """Both are empty if an older version registers. Another version is refused."""


class TaskManagerAccepted(Message, frozen=True, kw_only=True, tag="TaskManagerAccepted"):
    """The TaskManager belongs to the JobManager of this epoch from now on."""

    epoch: LeaderEpoch


class TaskManagerHeartbeat(Message, frozen=True, kw_only=True, tag="TaskManagerHeartbeat"):
    """A TaskManager that is silent for the timeout is lost with its slots."""

    id: TaskManagerId
    epoch: LeaderEpoch


class SlotExited(Message, frozen=True, kw_only=True, tag="SlotExited"):
    """A slot process ended. `status` as subprocess gives it: negative is a signal's number."""

    id: TaskManagerId
    epoch: LeaderEpoch
    index: int
    job: JobName
    attempt: Attempt
    pid: int
    status: int
    serial: int = 0
    """Of the StartSlot that began it."""


# --- JobManager to TaskManager and JobMaster ----------------------------------------------------


class StartSlot(Message, frozen=True, kw_only=True, tag="StartSlot"):
    """Fork a slot process for an attempt; it registers with the JobMaster by itself."""

    epoch: LeaderEpoch
    index: int
    ordinal: int
    job: JobName
    attempt: Attempt
    jobmaster_address: str
    working_folder: str
    settings: dict[str, object]
    serial: int = 0
    """Grows with every StartSlot of a JobManager: one that arrives late or twice is recognised."""


class StopSlot(Message, frozen=True, kw_only=True, tag="StopSlot"):
    """Kill the slot's process if it belongs to this attempt or an older one.

    The reply is Done when the process is gone; a StartSlot up to this serial is refused from then
    on.
    """

    epoch: LeaderEpoch
    index: int
    job: JobName
    attempt: Attempt
    serial: int = 0


class SlotLost(Message, frozen=True, kw_only=True, tag="SlotLost"):
    """A slot of the attempt, or its whole TaskManager, is gone."""

    job: JobName
    attempt: Attempt
    slot: SlotId
    reason: str
    serial: int = 0
    """Of the StartSlot: the slot may have been given out again since."""


class SlotsReleased(Message, frozen=True, kw_only=True, tag="SlotsReleased"):
    """No process of a slot of any attempt up to this one is left."""

    job: JobName
    attempt: Attempt


# --- slot to JobMaster --------------------------------------------------------------------------


class RegisterSlot(Message, frozen=True, kw_only=True, tag="RegisterSlot"):
    """A slot process is up and waits for its deployment."""

    job: JobName
    attempt: Attempt
    ordinal: int
    slot: SlotId
    pid: int
    task_manager_pid: int
    address: str
    """Where the slot takes control messages."""
    exchange_address: str
    """Where it takes connections of other slots: `unix:PATH` or `host:port`."""
    serial: int = 0
    """Of the StartSlot that it was forked for."""
    tidegate_version: str = ""
    python_version: str = ""


class TasksReady(Message, frozen=True, kw_only=True, tag="TasksReady"):
    """All subtasks of the slot have restored their state, opened their functions and connected."""

    job: JobName
    attempt: Attempt
    ordinal: int


class SlotMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a slot since its start."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    lag: int | None = None
    saturated: bool = False
    """It has lately waited for records for less than half of the time."""
    source_error: str = ""
    """Why sources of the slot cannot read; empty if they can."""
    restoring: str = ""
    """The storage call that the slot waits for while it is deployed; empty if for none."""
    restored_bytes: int = 0
    """What these calls have brought, the present one included."""


class AcknowledgeCheckpoint(Message, frozen=True, kw_only=True, tag="AcknowledgeCheckpoint"):
    """A subtask's part of a checkpoint is complete and durable."""

    job: JobName
    attempt: Attempt
    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    alignment_ms: int
    """From the first barrier to the last; 0 in sources."""
    sync_ms: int
    """Time for which the subtask stood still for its snapshot."""
    ordinal: int
    metrics: SlotMetrics
    """Of the slot, now: what is counted is at least as new as the last checkpoint, also in a job
    that has ended."""


class DeclineCheckpoint(Message, frozen=True, kw_only=True, tag="DeclineCheckpoint"):
    """A subtask's part of a checkpoint could not be made; one is enough to abort it."""

    job: JobName
    attempt: Attempt
    checkpoint: CheckpointId
    subtask: SubtaskId
    reason: str


class SubtaskInputEnded(Message, frozen=True, kw_only=True, tag="InputEnded"):
    """The subtask has processed the last record of a bounded run."""

    job: JobName
    attempt: Attempt
    subtask: SubtaskId


class TaskFailed(Message, frozen=True, kw_only=True, tag="TaskFailed"):
    """The attempt cannot go on; `subtask` is None where the slot as a whole failed."""

    job: JobName
    attempt: Attempt
    subtask: SubtaskId | None
    error: ErrorReport


class SlotHeartbeat(Message, frozen=True, kw_only=True, tag="SlotHeartbeat"):
    """A slot whose heartbeats are refused or unanswered for the timeout ends itself."""

    job: JobName
    attempt: Attempt
    ordinal: int
    metrics: SlotMetrics


# --- JobMaster to slot --------------------------------------------------------------------------


class SlotCommand(Message, frozen=True, kw_only=True):
    """Base of what a JobMaster tells a slot."""

    job: JobName
    attempt: Attempt
    number: int = 0
    """Counts what is sent to the slot, from 1; each is sent after the one before was taken. So a
    slot obeys nothing twice, and nothing that comes late."""


class RestoredState(msgspec.Struct, frozen=True, kw_only=True):
    """Keyed snapshots of one step that overlap this slot's key groups."""

    snapshots: tuple[KeyedSnapshot, ...]


class Deploy(SlotCommand, frozen=True, kw_only=True, tag="Deploy"):
    """Everything a slot needs to build and restore its subtasks (subtask i of each vertex is slot
    i's).
    """

    ordinal: int
    journal: str
    """The journal's random name, part of transactional ids."""
    submission: Submission
    peers: tuple[str, ...]
    """Exchange addresses by ordinal."""
    splits: tuple[SourceSplit, ...]
    """The source splits that this slot's source subtasks read."""
    restored: dict[str, RestoredState]
    """By the uid of the step."""
    transaction_timeout_ms: int
    warm_producers: int
    transaction_slots: int
    max_message_bytes: dict[str, int] = {}
    """`max.message.bytes` of the topics of sinks, where the brokers tell it."""
    claim_nonce: str = ""
    """Of the attempt's claim, which the slot must find in its view of the checkpoint storage."""
    kafka_cluster: str = ""
    """The Kafka cluster that the attempt runs on, which the slot must reach."""
    storage: str = ""
    """The id of the checkpoint storage, see `BlobStore.bind`."""


class StartSources(SlotCommand, frozen=True, kw_only=True, tag="StartSources"):
    """Every slot is ready and the fencing is done: sources may read."""


class TriggerCheckpoint(SlotCommand, frozen=True, kw_only=True, tag="TriggerCheckpoint"):
    """Sources of the slot inject the barrier; after a final one they emit nothing more."""

    checkpoint: CheckpointId
    final: bool = False


class CheckpointCompleted(SlotCommand, frozen=True, kw_only=True, tag="CheckpointCompleted"):
    """Published and committed. `ended` need not be acknowledged again: seen CompleteCommit. The
    journal names `freed` no more (settled, or a newer publication): their ids may be used again.
    """

    checkpoint: CheckpointId
    ended: tuple[TransactionalId, ...]
    freed: tuple[TransactionalId, ...]


class CheckpointAborted(SlotCommand, frozen=True, kw_only=True, tag="CheckpointAborted"):
    """Declined or expired: snapshots may be dropped, prepared transactions may not."""

    checkpoint: CheckpointId


class CloseTasks(SlotCommand, frozen=True, kw_only=True, tag="CloseTasks"):
    """The job has ended: close the user's functions and leave."""
