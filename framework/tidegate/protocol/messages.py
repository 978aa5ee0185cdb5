"""The messages between the processes of a cluster.

Each message is one struct with a tag, which names it on the wire. `codec.py` encodes and decodes
the messages. `submission.py` has the job that some of them carry, and `reports.py` has the messages
with the report of a job. The processes send:

    client      -> JobManager   SubmitJob, GetJob, ListJobs, StopJob
    JobMaster   -> JobManager   RegisterJobMaster, RequestSlots, ReleaseSlots, ReportJob
    TaskManager -> JobManager   RegisterTaskManager, TaskManagerHeartbeat, SlotExited
    JobManager  -> TaskManager  StartSlot, StopSlot
    JobManager  -> JobMaster    StopJob, SlotLost, SlotsReleased
    TaskManager -> JobMaster    SlotStalled
    slot        -> JobMaster    RegisterSlot, TasksReady, AcknowledgeCheckpoint, DeclineCheckpoint,
                                SubtaskInputEnded, TaskFailed, SlotHeartbeat
    JobMaster   -> slot         Deploy, StartSources, DrainSources, TriggerCheckpoint,
                                CheckpointCompleted, CheckpointAborted, CloseTasks

Each request has one reply: Acknowledge, unless the docstring of the request names another. Any
receiver may reply with Refused, or with Failed if its handler raises an error.

Each message to or from a slot carries the job and the attempt (`AttemptMessage`). If it is not the
attempt of the receiver, the reply is Refused, and the receiver does nothing else. Messages from a
JobMaster or a TaskManager to the JobManager carry its leader epoch (`LeaderMessage`), and so do
messages from the JobManager to a TaskManager. The network may lose or repeat a message. A handler
is therefore idempotent, or it uses a number to recognize a message that it has already received.
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
)
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.slot_metrics import HangingCall, SlotMetrics
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import KeyedSnapshot, SourceSplit, SubtaskSnapshot


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of all messages. The tag, and not the class, names a message on the wire."""


class LeaderMessage(Message, frozen=True, kw_only=True):
    """The base class of messages that belong to one leader epoch. Another epoch refuses them."""

    epoch: LeaderEpoch
    """The epoch of the JobManager that sends the message, or that the sender belongs to."""


class AttemptMessage(Message, frozen=True, kw_only=True):
    """The base class of messages that belong to one attempt. Another attempt refuses them."""

    job: JobName
    attempt: Attempt


# --- replies ------------------------------------------------------------------------------------


class Acknowledge(Message, frozen=True, kw_only=True, tag="Done"):
    """The reply of a receiver that accepts a request."""


class Refused(Message, frozen=True, kw_only=True, tag="Refused"):
    """The reply of a receiver that rejects a request, for example one of an older attempt."""

    reason: str


class Failed(Message, frozen=True, kw_only=True, tag="Failed"):
    """The reply of a receiver whose handler raised an error. The caller raises the same error."""

    error: ErrorReport


# --- client to JobManager -----------------------------------------------------------------------


class SubmitJob(Message, frozen=True, kw_only=True, tag="SubmitJob"):
    """The request of a client to start a job.

    The JobManager acknowledges the request when the job is stored, and then starts its JobMaster.
    It refuses the request if a job of this name is live, or if the code was damaged on its way. A
    session cluster also refuses a client with another version, or with a secret that the cluster
    does not have. The client repeats the request if no reply comes. The job starts once, because
    `submission.id` stays the same.
    """

    submission: Submission
    code: bytes = b""
    """The archive that `submission.code` names."""


class GetJob(Message, frozen=True, kw_only=True, tag="GetJob"):
    """The request of a client for the report (JobReport) of one job. An unknown job is refused."""

    job: JobName


class ListJobs(Message, frozen=True, kw_only=True, tag="ListJobs"):
    """The request of a client for all jobs of a cluster. The JobManager replies with a JobList."""


class StopJob(Message, frozen=True, kw_only=True, tag="StopJob"):
    """The request of a client to end a job, which the JobManager sends on to the JobMaster.

    The JobManager acknowledges the request, and remembers it until the job has ended. It refuses
    the request if it does not know the job, or if the job has ended. Every JobMaster of the job
    gets the request, until one has ended the job.
    """

    job: JobName
    final_checkpoint: bool = True
    """True if the job takes a final checkpoint before it ends. Without one, the job is canceled."""
    drain: bool = False
    """True if all timers and windows fire before the final checkpoint."""
    waited_ms: int = 0
    """The time in ms since the user's request. The JobManager sets it when it sends the request
    on, because a JobMaster that replaces another one must not start the grace period again."""


# --- JobMaster and TaskManager to JobManager ----------------------------------------------------


class RegisterJobMaster(LeaderMessage, frozen=True, kw_only=True, tag="RegisterJobMaster"):
    """The registration of a JobMaster process, which the JobManager has started.

    The JobManager replies with JobMasterAccepted. It refuses the process if another JobMaster has
    replaced it, if its version differs, or if the job has ended. The JobMaster repeats its
    registration before it claims the journal, to learn whether it was replaced.
    """

    job: JobName
    address: str
    pid: int
    tidegate_version: str = ""
    python_version: str = ""


class JobMasterAccepted(Message, frozen=True, kw_only=True, tag="JobMasterAccepted"):
    """The reply to RegisterJobMaster, with the job that the JobMaster runs."""

    submission: Submission
    close_only: ErrorReport | None = None
    """The error of a job that has already failed. The JobMaster then imports no user code and
    starts no slot. It only settles, fences and closes the job."""
    storage: str = ""
    """The id of the checkpoint storage (see `BlobStore.bind`). Empty if the sender is older."""


class RequestSlots(LeaderMessage, frozen=True, kw_only=True, tag="RequestSlots"):
    """The request of a JobMaster for the slots of an attempt, with the ordinals 0 to `count` - 1.

    The JobMaster repeats the request every two seconds while slots are missing. The JobManager
    stops the slots of older attempts of the job. When enough slots are free, it sends a StartSlot
    to a TaskManager for each missing ordinal. It refuses the request if a newer attempt has
    requested slots, or if the sender is not the current JobMaster of the job.
    """

    job: JobName
    attempt: Attempt
    count: int
    jobmaster_address: str


class ReleaseSlots(LeaderMessage, frozen=True, kw_only=True, tag="ReleaseSlots"):
    """The message of a JobMaster that the job needs no slot of any attempt up to this one.

    The JobMaster sends the message when an attempt or the job ends. The JobManager stops the slots.
    When all of their processes have exited, it sends SlotsReleased.
    """

    job: JobName
    attempt: Attempt


class RegisterTaskManager(Message, frozen=True, kw_only=True, tag="RegisterTaskManager"):
    """The registration of a TaskManager, when it starts.

    The JobManager replies with TaskManagerAccepted. It refuses a TaskManager that has another
    version or another leader epoch, that was declared lost, or whose id is in use. A refused
    TaskManager exits. A standalone TaskManager repeats its registration until a JobManager replies.
    """

    id: TaskManagerId
    epoch: LeaderEpoch | None
    """The leader epoch of the JobManager that has started the TaskManager. It is None for a
    standalone TaskManager, which joins any leader and gets the epoch from the reply."""
    address: str
    slots: int
    pid: int
    tidegate_version: str = ""
    python_version: str = ""
    """The minor version of Python. Both versions are empty in a message of an older version."""


class TaskManagerAccepted(Message, frozen=True, kw_only=True, tag="TaskManagerAccepted"):
    """The reply to RegisterTaskManager. The TaskManager now belongs to this leader epoch."""

    epoch: LeaderEpoch


class TaskManagerHeartbeat(LeaderMessage, frozen=True, kw_only=True, tag="TaskManagerHeartbeat"):
    """The heartbeat of a TaskManager, which it sends at intervals.

    If the JobManager receives none for the heartbeat timeout, the TaskManager and its slots count
    as lost. The JobManager refuses a heartbeat of a TaskManager that is not registered. A refused
    TaskManager exits, and so does one without a reply for the heartbeat timeout.
    """

    id: TaskManagerId


class SlotExited(LeaderMessage, frozen=True, kw_only=True, tag="SlotExited"):
    """The message of a TaskManager that the process of a slot has ended.

    The TaskManager repeats the message until the JobManager replies. The slot is then free. If an
    attempt used the slot, its JobMaster gets SlotLost.
    """

    id: TaskManagerId
    index: int
    job: JobName
    attempt: Attempt
    pid: int
    status: int
    """The exit code, or the negative number of the signal that ended the process."""
    allocation_id: int = 0
    """The allocation id of the StartSlot that started the process."""


# --- JobManager to TaskManager and JobMaster ----------------------------------------------------


class StartSlot(LeaderMessage, frozen=True, kw_only=True, tag="StartSlot"):
    """The request of the JobManager to fork a slot process for an attempt.

    The TaskManager acknowledges the request when the process exists. The process then registers
    with the JobMaster (RegisterSlot). The TaskManager refuses the request if it is too old, if the
    slot is in use, or if the operating system refuses the fork.
    """

    index: int
    ordinal: int
    job: JobName
    attempt: Attempt
    jobmaster_address: str
    working_folder: str
    settings: dict[str, object]
    allocation_id: int = 0
    """A number that grows with every StartSlot of a JobManager. It shows a late or repeated one."""


class StopSlot(LeaderMessage, frozen=True, kw_only=True, tag="StopSlot"):
    """The request of the JobManager to kill the process of a slot.

    The process is killed if it belongs to this attempt of the job, or to an older one. The
    TaskManager acknowledges the request when no such process is left. From then on it refuses each
    StartSlot with an allocation id up to this one. The JobManager repeats a request that failed.
    """

    index: int
    job: JobName
    attempt: Attempt
    allocation_id: int = 0


class SlotLost(Message, frozen=True, kw_only=True, tag="SlotLost"):
    """The message of the JobManager that a slot of an attempt is gone.

    The process of the slot has exited or could not be started, or its TaskManager is lost. The
    JobManager sends the message once. The JobMaster also detects a lost slot itself, because the
    slot's heartbeats stop. The JobMaster does not refuse the message for an earlier attempt.
    """

    job: JobName
    attempt: Attempt
    slot: SlotId
    reason: str
    allocation_id: int = 0
    """The allocation id of the StartSlot. Since then, the slot may have been allocated again."""


class SlotsReleased(Message, frozen=True, kw_only=True, tag="SlotsReleased"):
    """The message of the JobManager that no slot process of any attempt up to this one is left.

    The JobManager sends it once, after ReleaseSlots. A job that ends waits for it, but not longer
    than ten seconds. The JobMaster does not refuse the message for an earlier attempt.
    """

    job: JobName
    attempt: Attempt


# --- slot to JobMaster --------------------------------------------------------------------------
# A slot repeats each of these messages until the JobMaster replies, or for the heartbeat timeout.
# A slot whose message is refused, fails or has no reply by then ends its process.


class RegisterSlot(AttemptMessage, frozen=True, kw_only=True, tag="RegisterSlot"):
    """The registration of a slot process, when it starts.

    When all slots of the attempt have registered, each one gets its Deploy. If the JobMaster does
    not need the slot, it sends CloseTasks.
    """

    ordinal: int
    slot: SlotId
    pid: int
    task_manager_pid: int
    address: str
    """The address where the slot receives control messages."""
    exchange_address: str
    """The address where the slot accepts connections of other slots: `unix:PATH` or `host:port`."""
    allocation_id: int = 0
    """The allocation id of the StartSlot for which the process was forked."""
    tidegate_version: str = ""
    python_version: str = ""
    host: str = ""
    """The name of the slot's host. It is empty in a message of an older version."""


class TasksReady(AttemptMessage, frozen=True, kw_only=True, tag="TasksReady"):
    """The message of a slot that its deployment is complete.

    All subtasks of the slot have restored their state, opened their functions and connected to the
    other slots. When all slots are ready, each one gets StartSources.
    """

    ordinal: int


class AcknowledgeCheckpoint(AttemptMessage, frozen=True, kw_only=True, tag="AcknowledgeCheckpoint"):
    """The message of a slot that one subtask's part of a checkpoint is complete and durable.

    When the JobMaster has the parts of all subtasks, it publishes the checkpoint.
    """

    checkpoint: CheckpointId
    snapshot: SubtaskSnapshot
    alignment_ms: int
    """The time from the first barrier to the last, in ms. It is 0 in sources."""
    sync_ms: int
    """The time for which the subtask processed no records because of its snapshot, in ms."""
    ordinal: int
    metrics: SlotMetrics
    """The slot's metrics, so that the job's counts include the records of this checkpoint."""


class DeclineCheckpoint(AttemptMessage, frozen=True, kw_only=True, tag="DeclineCheckpoint"):
    """The message of a slot that one subtask could not make its part of a checkpoint.

    The JobMaster then aborts the checkpoint. One message is enough for this. The attempt continues.
    """

    checkpoint: CheckpointId
    subtask: SubtaskId
    reason: str


class SubtaskInputEnded(AttemptMessage, frozen=True, kw_only=True, tag="InputEnded"):
    """The message of a slot that a subtask has processed the last record of a bounded run."""

    subtask: SubtaskId


class TaskFailed(AttemptMessage, frozen=True, kw_only=True, tag="TaskFailed"):
    """The message of a slot that the attempt cannot continue because of an error.

    The JobMaster ends the attempt. The slot ends its process when it has the reply.
    """

    subtask: SubtaskId | None
    """The subtask that failed. It is None if the error belongs to the whole slot."""
    error: ErrorReport


class SlotHeartbeat(AttemptMessage, frozen=True, kw_only=True, tag="SlotHeartbeat"):
    """The heartbeat of a slot with its metrics.

    The slot sends it at every heartbeat interval if the metrics have changed, and every
    `cluster.quiet_interval` otherwise. It also sends one at once for its first record after an idle
    time. If the JobMaster receives none for the heartbeat timeout, the slot counts as lost.
    """

    ordinal: int
    metrics: SlotMetrics


class SlotStalled(AttemptMessage, frozen=True, kw_only=True, tag="SlotStalled"):
    """The message of a TaskManager to a JobMaster that no thread of a slot can run.

    A call of user code holds Python's global lock, so the slot cannot report the call itself. The
    TaskManager sends the message once for each such call, and does not repeat it.
    """

    ordinal: int
    allocation_id: int
    call: HangingCall


# --- JobMaster to slot --------------------------------------------------------------------------


class SlotCommand(AttemptMessage, frozen=True, kw_only=True):
    """The base class of all messages from a JobMaster to a slot.

    The JobMaster repeats a command until the slot replies. The slot acknowledges a command when it
    is queued, and then carries it out. If the slot refuses a command, or does not reply for the
    heartbeat timeout, it counts as lost.
    """

    sequence: int = 0
    """The sequence number of the command, counted from 1 for each slot. The JobMaster sends a
    command after the slot has accepted the one before. So the slot can ignore a command that
    arrives twice or late."""


class RestoredState(msgspec.Struct, frozen=True, kw_only=True):
    """All keyed snapshots of one step that overlap the key groups of one slot."""

    snapshots: tuple[KeyedSnapshot, ...]


class Deploy(SlotCommand, frozen=True, kw_only=True, tag="Deploy"):
    """The command to build the subtasks of a slot and to restore their state.

    A slot with the ordinal i runs subtask i of each vertex. All slots have registered
    before. TasksReady or TaskFailed follows. Tasks of waves get the same struct.
    """

    ordinal: int
    journal_id: str = msgspec.field(name="journal")
    """The random id of the journal, which is part of transactional ids."""
    submission: Submission
    peers: tuple[str, ...]
    """The exchange addresses of all slots, by ordinal."""
    splits: tuple[SourceSplit, ...]
    """The source splits that the source subtasks of this slot read."""
    restored: dict[str, RestoredState]
    """The restored state, by the uid of the step."""
    transaction_timeout_ms: int
    producer_pool_size: int
    """The number of producers that a sink subtask keeps initialised."""
    transactional_ids_per_subtask: int
    """The number of transactional ids of a sink subtask."""
    max_message_bytes: dict[str, int] = {}
    """The value of `max.message.bytes` for each topic of a sink, if the brokers report it."""
    claim_nonce: str = ""
    """The nonce of the attempt's claim. The slot must find it in the storage that it sees."""
    kafka_cluster: str = ""
    """The id of the attempt's Kafka cluster. The slot's brokers must belong to this cluster."""
    storage: str = ""
    """The id of the checkpoint storage (see `BlobStore.bind`)."""
    input_over: bool = False
    """True if the checkpoint is of a stop with a drain. The sources read nothing."""
    watermarks: dict[str, int] = {}
    """The restored watermarks of the steps with their own time, by uid; equal in all slots."""
    host: str = ""
    tz_database: str = ""
    """The host of the attempt's begin, and its tz database if the job has calendar windows."""


class StartSources(SlotCommand, frozen=True, kw_only=True, tag="StartSources"):
    """The command to start the sources, when all slots are ready and older attempts are fenced."""


class DrainSources(SlotCommand, frozen=True, kw_only=True, tag="DrainSources"):
    """The command to end the input where the sources are, and to fire all timers and windows."""


class TriggerCheckpoint(SlotCommand, frozen=True, kw_only=True, tag="TriggerCheckpoint"):
    """The command to begin a checkpoint. The sources of the slot emit its barrier.

    For each subtask of the slot, AcknowledgeCheckpoint or DeclineCheckpoint follows, unless the
    checkpoint is aborted before.
    """

    checkpoint: CheckpointId
    final: bool = False
    """True for the final checkpoint of the job. After its barrier, sources emit nothing."""


class CheckpointCompleted(SlotCommand, frozen=True, kw_only=True, tag="CheckpointCompleted"):
    """The command to finish a checkpoint that is published and whose transactions are committed."""

    checkpoint: CheckpointId
    committed: tuple[TransactionalId, ...]
    """The ids of transactions for which Kafka has reported CompleteCommit. Subtasks no longer list
    these transactions in their acknowledgements."""
    reusable: tuple[TransactionalId, ...]
    """The ids that the journal no longer lists, because they are settled or a newer publication
    does not list them. Sinks may use these ids again."""


class CheckpointAborted(SlotCommand, frozen=True, kw_only=True, tag="CheckpointAborted"):
    """The command to drop a checkpoint that was declined or has expired. Subtasks may drop its
    snapshots, but they must keep its prepared transactions.
    """

    checkpoint: CheckpointId


class CloseTasks(SlotCommand, frozen=True, kw_only=True, tag="CloseTasks"):
    """The command to close the user's functions and to end the process of the slot.

    The JobMaster sends it to all slots when the job has ended. It also sends it to a slot that has
    registered but is not needed.
    """
