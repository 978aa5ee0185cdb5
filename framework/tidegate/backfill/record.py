"""The durable record of a backfill, which is a submission in the checkpoint storage.

After a crash, the same command must find the backfill again, with the same ends. A cluster must see
that a backfill owns the job, and a backfill must see that the job is live. The store of submissions
(`controlplane/jobmanager/job_store.py`) already decides who owns a job: the newest accepted
submission. So a backfill is a submission of a cluster with the name `_backfill-JOB`, which no
JobManager can have. The backfill's attempts in the journal have the id of this submission. The
submission holds the ends, the parameters and the code. It is created before the first claim, and
gets a result when its journal is closed.

Cuts are not recorded. The next wave begins at the last publication and ends at or before the
recorded ends. A second record of the same facts could contradict the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.api.code.archive import CodeArchive, contents
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.errors import RefusedError, StorageError
from tidegate.ids import JobName
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import PartitionEnd, Submission

PREFIX: Final = "_backfill-"
"""The prefix of the name of a backfill's cluster. `cluster.name` cannot begin with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBackfill:
    """The backfill that the storage holds."""

    submission: Submission
    finished: bool


class BackfillRecords:
    """The backfills of one job in its checkpoint storage. The methods raise StorageError."""

    def __init__(self, storage: BlobStore, job: JobName, settings: Mapping[str, Any]) -> None:
        """Create the records of `job`. `settings` are the settings of the command. Passwords in
        them are not stored.
        """
        self._job = job
        self._cluster = f"{PREFIX}{job}"
        self._storage = storage
        self._store = JobStore(storage, self._cluster, settings)

    def find(self, *, has_lock: bool, job_is_stopped: bool) -> RecordedBackfill | None:
        """Return the job's newest submission, if it is a backfill.

        `has_lock` means that this command holds the lock that `tidegate run` would hold, so no run
        of the job is live. A session cluster does not use this lock. `job_is_stopped` means that
        the operator confirms that no process of the job is left. Raise RefusedError if the job may
        be live.
        """
        newest = self._store.newest(self._job)
        if newest is None:
            return None
        submission, result = newest
        if submission.cluster == self._cluster:
            return RecordedBackfill(submission=submission, finished=result is not None)
        proven = has_lock and not submission.session_cluster
        if result is None and not (proven or job_is_stopped):
            raise RefusedError(_live(submission))
        return None

    def begin(
        self, submission: Submission, archive: CodeArchive, ends: tuple[PartitionEnd, ...], to: str
    ) -> Submission:
        """Record a backfill with its code. Return the submission as it is recorded.

        Raise StorageError if another command has recorded a backfill at the same time.
        """
        ours = msgspec.structs.replace(submission, cluster=self._cluster, ends=ends, to=to)
        self._store.claim_epoch(submission.id)
        self._store.put_submission(ours, archive.data)
        code = self._store.stored_code(self._job)
        if not self._store.accept(self._job):
            message = (
                f"Another command began a backfill of job {self._job!r} at the same time. Run this"
                " command again to continue that backfill."
            )
            raise StorageError(message)
        return msgspec.structs.replace(ours, code=code)

    def owns_job(self, submission: str) -> bool:
        """Return whether this submission still owns the job, because no newer one was accepted."""
        newest = self._store.newest(self._job)
        return newest is not None and newest[0].id == submission

    def changed_modules(self, recorded: Submission, archive: CodeArchive) -> list[str]:
        """Return the modules that differ between the recorded code and `archive`. Data files may
        differ, for example a log in the working folder. The backfill uses the recorded data files.
        """
        code = recorded.code
        data = None if code is None else self._storage.get(code.path)
        if code is None or data is None:
            message = (
                f"The code of the backfill of job {self._job!r} is no longer in the checkpoint"
                " storage. Begin a new backfill with --new."
            )
            raise RefusedError(message)
        before, now = _modules(data, code.path, code.size), _modules(archive.data, "", archive.size)
        return sorted(name for name in before.keys() | now if before.get(name) != now.get(name))

    def finish(self, records_in: int, records_out: int, late: Mapping[str, int]) -> None:
        """Record that the current backfill has finished, with the counts of the command that has
        finished it. After this, no submission owns the job.
        """
        self._store.put_result(
            JobReport(
                job=self._job,
                state=JobState.FINISHED,
                records_in=records_in,
                records_out=records_out,
                late=dict(late),
            )
        )


def continued(
    recorded: Submission, requested: Submission, to: str, changed_modules: Sequence[str] = ()
) -> Submission:
    """Return the submission with which a command continues a recorded backfill. It is `requested`,
    with the id, the ends and the code of the record.

    The parallelism and the settings of processes may differ, as between two attempts. Raise
    RefusedError if a difference would change the output.
    """
    differences = [
        text
        for text, before, now in (
            (f"the code has changed ({', '.join(changed_modules)})", (), tuple(changed_modules)),
            ("the pipeline has changed", recorded.fingerprint, requested.fingerprint),
            (
                _changed("--set", recorded.params, requested.params),
                recorded.params,
                requested.params,
            ),
            (f"--to was {recorded.to}, and this command has {to}", recorded.to, to),
            ("a topic has changed", _connectors(recorded), _connectors(requested)),
            *_first_claim_options(recorded, requested),
        )
        if before != now
    ]
    if differences:
        message = (
            f"Job {requested.job!r} has a backfill that this command would change:"
            f" {'; '.join(differences)}. Run the command as the backfill was begun, or begin a new"
            " backfill with --new. The new one continues from the last published wave, or starts"
            " without state if you add --restore none."
        )
        raise RefusedError(message)
    return msgspec.structs.replace(
        requested,
        id=recorded.id,
        cluster=recorded.cluster,
        restore=recorded.restore,
        ends=recorded.ends,
        to=recorded.to,
        code=recorded.code,
        code_digest=recorded.code_digest,
    )


def _live(submission: Submission) -> str:
    if submission.session_cluster:
        return (
            f"Job {submission.job!r} is a job of the session cluster {submission.cluster!r}, and"
            " has not ended there. A backfill would take over its journal. Stop the job first"
            f" (tidegate stop {submission.job}), or give the backfill another name (--as). If that"
            " cluster no longer exists, add --job-is-stopped."
        )
    return (
        f"Job {submission.job!r} was run by `tidegate run`, which has left no result. It may still"
        " run on another machine, or was killed there. A backfill would take over its journal. Stop"
        " the job first. If no process of the job is left, add --job-is-stopped."
    )


def _first_claim_options(
    recorded: Submission, requested: Submission
) -> Iterator[tuple[str, object, object]]:
    """Yield the options that only the first claim of a submission uses."""
    yield "--restore differs", recorded.restore, requested.restore
    for option in ("accept_data_loss", "take_over", "restore_to_other_cluster"):
        before, now = getattr(recorded, option), getattr(requested, option)
        yield f"--{option.replace('_', '-')} is new", now and before, now


def _modules(archive: bytes, path: str, size: int) -> dict[str, bytes]:
    return {name: data for name, data in contents(archive, path, size) if name.endswith(".py")}


def _changed(option: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return a text with the names that differ. It has no values, because they may be secret."""
    names = sorted(name for name in before.keys() | now if before.get(name) != now.get(name))
    return f"{option} differs in {', '.join(names)}"


def _connectors(submission: Submission) -> object:
    """Return the topics of sources and sinks from the settings, which replace the topics in the
    pipeline's code.
    """
    return {
        section: {
            name: settings["topic"]
            for name, settings in _table(submission.settings.get(section)).items()
            if settings.get("topic") is not None
        }
        for section in ("sources", "sinks")
    }


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
