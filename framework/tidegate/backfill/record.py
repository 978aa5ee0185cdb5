"""The durable record of a backfill: a submission in the checkpoint storage, like those of clusters.

The same command must find a backfill again after a crash, with the ends that it began with. A
cluster must see that the job is a backfill's, and a backfill must see that the job is live. The
store of submissions (`controlplane/jobmanager/job_store.py`) decides this already: the newest
submission that counts has the job. So a backfill is a submission of a cluster `_backfill-JOB`,
which no JobManager can have. Its id is that of its attempts in the journal. It holds the ends, the
parameters and the code. It is created before the first claim, and has a result when its journal is
closed.

Cuts are not recorded. The last publication says where the next wave begins, and the ends say where
it may end: a second place for the same could only differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tidegate.api.archive import CodeArchive, contents
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.errors import RefusedError, StorageError
from tidegate.ids import JobName
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import JobReport, PartitionEnd, Submission

PREFIX: Final = "_backfill-"
"""How the name of a backfill's cluster begins; no cluster can be called so (`cluster.name`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The backfill that the storage holds."""

    submission: Submission
    finished: bool


class BackfillRecords:
    """The backfills of one job in its checkpoint storage. Methods raise StorageError."""

    def __init__(self, storage: BlobStore, job: JobName, settings: Mapping[str, Any]) -> None:
        """`settings` are those of the command: a password among them is not written down."""
        self._job = job
        self._cluster = f"{PREFIX}{job}"
        self._storage = storage
        self._store = JobStore(storage, self._cluster, settings)

    def find(self, *, has_lock: bool, job_is_stopped: bool) -> Recorded | None:
        """The job's newest submission, if it is a backfill.

        `has_lock`: this command holds the lock that a run of the job would hold, so none is live;
        of a standing cluster it says nothing. `job_is_stopped`: the operator says that no process
        of the job is left. RefusedError for a job that is live.
        """
        newest = self._store.newest(self._job)
        if newest is None:
            return None
        submission, result = newest
        if submission.cluster == self._cluster:
            return Recorded(submission=submission, finished=result is not None)
        proven = has_lock and not submission.standing
        if result is None and not (proven or job_is_stopped):
            raise RefusedError(_live(submission))
        return None

    def begin(
        self, submission: Submission, archive: CodeArchive, ends: tuple[PartitionEnd, ...], to: str
    ) -> Submission:
        """Record a backfill with its code; the submission as it is recorded.

        StorageError where another command has recorded one at the same moment.
        """
        ours = msgspec.structs.replace(submission, cluster=self._cluster, ends=ends, to=to)
        self._store.claim_epoch(submission.id)
        self._store.put_submission(ours, archive.data)
        code = self._store.stored_code(self._job)
        if not self._store.accept(self._job):
            message = (
                f"Another backfill of job {self._job!r} was begun at the same moment. Run the"
                " command again to see it."
            )
            raise StorageError(message)
        return msgspec.structs.replace(ours, code=code)

    def holds(self, submission: str) -> bool:
        """Whether this submission still has the job: none that counts has come since."""
        newest = self._store.newest(self._job)
        return newest is not None and newest[0].id == submission

    def changed_modules(self, recorded: Submission, archive: CodeArchive) -> list[str]:
        """The modules that differ between the record's code and `archive`. Data files may differ:
        a log in the working folder is one. Those of the record are used.
        """
        code = recorded.code
        data = None if code is None else self._storage.get(code.path)
        if code is None or data is None:
            message = (
                f"The code of the backfill of job {self._job!r} is not in the checkpoint storage"
                " any more. Begin a new backfill with --new."
            )
            raise RefusedError(message)
        before, now = _modules(data, code.path, code.size), _modules(archive.data, "", archive.size)
        return sorted(name for name in before.keys() | now if before.get(name) != now.get(name))

    def finish(self, records_in: int, records_out: int) -> None:
        """Record that the backfill found last, or begun, is done: the job is nobody's now."""
        self._store.put_result(
            JobReport(
                job=self._job,
                state=JobState.FINISHED,
                records_in=records_in,
                records_out=records_out,
            )
        )


def continued(
    recorded: Submission, asked: Submission, to: str, changed_modules: Sequence[str] = ()
) -> Submission:
    """What a command runs that continues a recorded backfill: as it asks, with the id, the ends and
    the code of the record.

    The parallelism and the settings of processes may differ, as between two attempts. RefusedError
    where anything differs that makes another output.
    """
    differences = [
        text
        for text, before, now in (
            (f"the code has changed ({', '.join(changed_modules)})", (), tuple(changed_modules)),
            ("the pipeline has changed", recorded.fingerprint, asked.fingerprint),
            (_changed("--set", recorded.params, asked.params), recorded.params, asked.params),
            (f"--to was {recorded.to}, and is {to}", recorded.to, to),
            ("a topic has changed", _connectors(recorded), _connectors(asked)),
            *_consents(recorded, asked),
        )
        if before != now
    ]
    if differences:
        message = (
            f"Job {asked.job!r} has a backfill that was begun otherwise: {'; '.join(differences)}."
            " Run the command as it was begun, or begin a new backfill with --new: it continues"
            " from the last wave that is published (or, with --restore none, starts without state)."
        )
        raise RefusedError(message)
    return msgspec.structs.replace(
        asked,
        id=recorded.id,
        cluster=recorded.cluster,
        restore=recorded.restore,
        ends=recorded.ends,
        to=recorded.to,
        code=recorded.code,
        code_digest=recorded.code_digest,
    )


def _live(submission: Submission) -> str:
    if submission.standing:
        return (
            f"Job {submission.job!r} is a job of the standing cluster {submission.cluster!r}, and"
            " has not ended there. A backfill would take its journal over. Stop it first"
            f" (tidegate stop {submission.job}), or backfill under another name (--as). If that"
            " cluster is gone for ever, add --job-is-stopped."
        )
    return (
        f"Job {submission.job!r} was run by `tidegate run`, which has left no result: it runs on"
        " another machine, or was killed there. A backfill would take its journal over. Stop it"
        " first. If no process of it is left, add --job-is-stopped."
    )


def _consents(recorded: Submission, asked: Submission) -> Iterator[tuple[str, object, object]]:
    """What counts for the first claim of a submission only."""
    yield "--restore differs", recorded.restore, asked.restore
    for option in ("accept_loss", "take_over", "restore_to_other_cluster"):
        before, now = getattr(recorded, option), getattr(asked, option)
        yield f"--{option.replace('_', '-')} is new", now and before, now


def _modules(archive: bytes, path: str, size: int) -> dict[str, bytes]:
    return {name: data for name, data in contents(archive, path, size) if name.endswith(".py")}


def _changed(option: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Names only: a value may be a secret."""
    names = sorted(name for name in before.keys() | now if before.get(name) != now.get(name))
    return f"{option} differs in {', '.join(names)}"


def _connectors(submission: Submission) -> object:
    """Which topics the sources and sinks are given, beside those of the pipeline itself."""
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
