"""What a JobManager keeps in the checkpoint storage: its epoch, and the jobs that outlive it.

    _cluster/<cluster>/leaders/<20-digit epoch>   created if absent: each JobManager takes the next
    one _cluster/<cluster>/jobs/<job>                 this cluster runs or ran that job
    <job>/submission.json                         what was submitted, with the cluster that runs it
    <job>/result.json                             the last report of a job that has ended

The order of writes is what makes a kill, or a write that fails, harmless at every point: only the
last write of a submit makes the job one that is to be run. First the job is listed: without a
submission it is none, with that of an earlier run it has ended, and what was forgotten names
another cluster. Then the submission is written: of a name without a result that is the end, and
only where there is one the job has still ended, until the result goes, which comes last. So a
submit that was answered as failed, or not at all, leaves an ended job or none. An end writes the
result. A job whose submission names another cluster is that one's by now, and is left alone.
Recovery of state is not decided here but by the job's journal.

Passwords are not written: a JobManager has the settings of its cluster from whoever starts it, and
puts them back into what it recovers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from tidegate.config_load import MASK, is_secret
from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.ids import JobName, LeaderEpoch
from tidegate.ports.blobs import BlobStore, Created
from tidegate.protocol.messages import JobReport, Submission

T = TypeVar("T")

NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})

UNKNOWN_TRIES_MAX = 20
"""A create whose outcome the store does not say is repeated so often, then this JobManager ends:
the next one tries with the next number, and an unused number hurts nobody."""


class JobStore:
    """The jobs and leaders of one cluster in a storage. Methods raise StorageError."""

    def __init__(
        self, blobs: BlobStore, cluster: str, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        """`settings` are the cluster's own: a password that is among them is not written down."""
        self._blobs = blobs
        self._cluster = cluster
        self._own = settings
        self._folder = f"_cluster/{cluster}"

    def claim_epoch(self, nonce: str) -> LeaderEpoch:
        """Take the next leader epoch: greater than that of every JobManager before."""
        epoch = self._newest_epoch() + 1
        for _ in range(UNKNOWN_TRIES_MAX):
            path = f"{self._folder}/leaders/{epoch:020d}"
            match self._blobs.create(path, nonce.encode()):
                case Created.CREATED:
                    return LeaderEpoch(epoch)
                case Created.EXISTS:
                    if self._blobs.get(path) == nonce.encode():  # our own, from an unanswered try
                        return LeaderEpoch(epoch)
                    epoch += 1
                case Created.UNKNOWN:
                    continue
        raise StorageError(
            f"No leader epoch could be claimed for cluster {self._cluster} in {UNKNOWN_TRIES_MAX} "
            "tries: the checkpoint storage does not answer, or many JobManagers start at once."
        )

    def is_leader(self, epoch: LeaderEpoch) -> bool:
        """Whether no JobManager of this cluster has claimed a newer epoch."""
        return self._newest_epoch() <= epoch

    def put_submission(self, submission: Submission) -> None:
        """Make a submit durable; the result of an earlier run of the name goes."""
        job = submission.job
        kept = msgspec.structs.replace(
            submission, settings=without_secrets(submission.settings, self._own)
        )
        has_ended = self._blobs.get(f"{job}/result.json") is not None
        self._blobs.put(f"{self._folder}/jobs/{job}", b"")
        self._blobs.put(f"{job}/submission.json", msgspec.json.encode(kept))
        if has_ended:
            self._blobs.delete(f"{job}/result.json")

    def put_result(self, report: JobReport) -> None:
        """Make a job's end durable: no later JobManager starts it again."""
        self._blobs.put(f"{report.job}/result.json", msgspec.json.encode(report))

    def forget(self, job: JobName) -> bool:
        """The job was deposed: it is taken off the list if it is another cluster's now. False where
        it is still this one's: then it stays, for whoever leads this cluster.
        """
        data = self._blobs.get(f"{job}/submission.json")
        if data is not None and self._submission(job, data).cluster == self._cluster:
            return False
        self._blobs.delete(f"{self._folder}/jobs/{job}")
        return True

    def _newest_epoch(self) -> int:
        taken = self._blobs.list(f"{self._folder}/leaders")
        return max((int(path.rsplit("/", 1)[1]) for path in taken), default=0)

    def jobs(self) -> list[tuple[Submission, JobReport | None]]:
        """Jobs of this cluster, each with its result if it has ended."""
        found = []
        for path in self._blobs.list(f"{self._folder}/jobs"):
            job = path.rsplit("/", 1)[1]
            data = self._blobs.get(f"{job}/submission.json")
            if data is None:
                continue
            submission = self._submission(job, data)
            if submission.cluster != self._cluster:
                continue
            submission = msgspec.structs.replace(
                submission, settings=with_secrets(submission.settings, self._own)
            )
            result = self._blobs.get(f"{job}/result.json")
            found.append(
                (
                    submission,
                    None if result is None else _decode(result, JobReport, f"{job}/result.json"),
                )
            )
        return found

    def _submission(self, job: str, data: bytes) -> Submission:
        return _decode(data, Submission, f"{job}/submission.json")


def without_secrets(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the mask in place of every secret that `own` holds too."""
    return {
        key: without_secrets(value, _table(own, key))
        if isinstance(value, Mapping)
        else (MASK if value and is_secret(key) and own.get(key) == value else value)
        for key, value in settings.items()
    }


def with_secrets(settings: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `without_secrets`."""
    return {
        key: with_secrets(value, _table(own, key))
        if isinstance(value, Mapping)
        else (own.get(key, value) if value == MASK else value)
        for key, value in settings.items()
    }


def _table(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = settings.get(key)
    return table if isinstance(table, Mapping) else {}


def _decode(data: bytes, kind: type[T], path: str) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptCheckpointError(
            f"{path} in the checkpoint storage cannot be read ({error}). If it was edited or is of "
            "another version of tidegate, remove it and submit the job again: its state is safe."
        ) from error
