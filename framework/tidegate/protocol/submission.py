"""A job as a client submitted it: what every process needs to build the job's graph and to run it.

A submission is data and no message. `SubmitJob` brings it to the JobManager, which stores it. Then
it goes to the JobMaster with `JobMasterAccepted`, and to each slot with `Deploy`. Its fields are
keys in the checkpoint storage, so a renamed field keeps its stored name.
"""

from __future__ import annotations

import msgspec

from tidegate.ids import JobName, LeaderEpoch, Uid


class StoredCode(msgspec.Struct, frozen=True, kw_only=True):
    """The archive with the code of a submission. Every attempt runs it.

    See `api/code/archive.py`.
    """

    digest: str
    """The SHA-256 of the archive, in hex."""
    size: int
    """The size of all unpacked files together, in bytes."""
    path: str = ""
    """The path in the checkpoint storage. The JobManager sets it when it stores the archive."""


class PartitionEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The offset at which a bounded run stops in one partition of a source."""

    source: Uid
    topic: str
    partition: int
    offset: int
    """The end offset. The record at this offset is not read."""


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a client submitted it. Any process can build the job's graph from it."""

    job: JobName
    reference: str
    """The pipeline class, as `package.module:Class`."""
    working_folder: str
    """The folder where relative paths of settings start. If the submission has no `code`, processes
    import the pipeline from this folder."""
    params: dict[str, str]
    parallelism: int
    max_parallelism: int
    settings: dict[str, object]
    """The effective configuration (`Config.to_dict`). It has secrets, so it is never logged."""
    fingerprint: str
    """The fingerprint of the client's graph. Every process must build the same graph."""
    code_digest: str
    python_version: str
    tidegate_version: str
    bounded: bool = False
    drain: bool = False
    """True if all timers and windows fire at the end of a bounded input."""
    restore: str = "latest"
    """The checkpoint to restore: `latest`, `none`, or a checkpoint id."""
    accept_data_loss: bool = msgspec.field(default=False, name="accept_loss")
    """True if the operator accepts the loss that the last `lost` entry of the journal states."""
    id: str = ""
    """A random id, made by the client. The id distinguishes a new submit of the job from a repeated
    request and from a restart."""
    take_over: bool = False
    """True if the operator consents to fence the transactional ids that another journal has left in
    Kafka under the name of this job."""
    restore_to_other_cluster: bool = False
    """True if the operator consents to restore checkpoints of another Kafka cluster on this one,
    because every topic has the same offsets there."""
    claimed_attempt: int = 0
    """An attempt of this submission that a JobMaster has reported, or 0 without one. The journal
    then holds the claim of this attempt. The JobManager sets the number."""
    cluster: str = ""
    """The cluster that runs the job. Another cluster on the same storage does not run it."""
    epoch: LeaderEpoch = LeaderEpoch(0)
    """The leader epoch of the JobManager that stored it, or 0 if an older version stored it."""
    code: StoredCode | None = None
    """The code of the job. It is None in a submission of an older version, whose job runs the files
    of the working folder."""
    session_cluster: bool = msgspec.field(default=False, name="standing")
    """True if the cluster is a session cluster. The lock of `tidegate run` does not say whether a
    session cluster is alive."""
    ends: tuple[PartitionEnd, ...] = ()
    """The ends of a bounded run, if the client has chosen them. The run then reads no other
    partition. If there are no ends here, the first attempt chooses them."""
    to: str = ""
    """The user's text for the end of a backfill, from the option `--to`."""
