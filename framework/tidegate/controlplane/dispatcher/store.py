"""What a JobManager keeps in the checkpoint storage: its epoch, and the jobs that outlive it.

    _cluster/<cluster>/leaders/<epoch>   created if absent: each JobManager takes the next one
    _cluster/<cluster>/jobs/<job>        this cluster runs or ran that job
    <job>/submissions/<number>/
        submission.json                  created if absent: what was submitted, by which cluster
        result.json                      the last report of that run, once it has ended

Epochs and numbers are 20 digits.

The newest submission of a job is the one that counts. If it has no result it is to be run, by the
cluster that it names; of every other cluster the job is no more. So of two clusters that take the
same job the later one has it, and a request that the storage carries out late, after its sender has
given up or died, cannot take it back: a number that is taken is not written again, and a result is
that of its number.

The order of writes is what makes a kill, or a write that fails, harmless at every point. A submit
first lists the job: without a submission it is none, and what was forgotten names another cluster.
Then it takes the next number, and that is the end. Where the storage never says whether it did, the
submit is answered as failed, and the job may be run all the same by the next JobManager.
Submissions older than the newest are deleted before, so that there are two at most.

Passwords are not written: a JobManager has the settings of its cluster from whoever starts it, and
puts them back into what it recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from tidegate.config_load import MASK, is_secret
from tidegate.errors import CorruptCheckpointError, InternalError, StorageError
from tidegate.ids import JobName, LeaderEpoch
from tidegate.ports.blobs import BlobStore, Created
from tidegate.protocol.messages import JobReport, Submission

T = TypeVar("T")

NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})

UNKNOWN_TRIES_MAX = 20
"""A create whose outcome the store does not say is repeated so often, then a JobManager ends, or a
submit is refused: the next one tries with the next number, and an unused number hurts nobody."""


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
        #: The submission of each job that this cluster runs or ran.
        self._numbers: dict[JobName, int] = {}

    def claim_epoch(self, nonce: str) -> LeaderEpoch:
        """Take the next leader epoch: greater than that of every JobManager before."""
        number = self._create_next(
            lambda number: f"{self._folder}/leaders/{number:020d}",
            self._newest_epoch(),
            nonce.encode(),
            f"No leader epoch could be claimed for cluster {self._cluster}",
        )
        return LeaderEpoch(number)

    def is_leader(self, epoch: LeaderEpoch) -> bool:
        """Whether no JobManager of this cluster has claimed a newer epoch."""
        return self._newest_epoch() <= epoch

    def put_submission(self, submission: Submission) -> None:
        """Make a submit durable: the job is to be run, and by this cluster."""
        job = submission.job
        kept = msgspec.structs.replace(
            submission, settings=without_secrets(submission.settings, self._own)
        )
        self._blobs.put(f"{self._folder}/jobs/{job}", b"")
        newest = self._clean(job)
        self._numbers[job] = self._create_next(
            lambda number: f"{_folder(job, number)}/submission.json",
            newest,
            msgspec.json.encode(kept),
            f"The submission of job {job} could not be written",
        )

    def put_result(self, report: JobReport) -> None:
        """Make a job's end durable: no later JobManager starts that submission again."""
        number = self._numbers.get(report.job)
        if number is None:
            raise InternalError(f"job {report.job} has ended that was neither submitted nor found")
        self._blobs.put(f"{_folder(report.job, number)}/result.json", msgspec.json.encode(report))

    def forget(self, job: JobName) -> bool:
        """The job was deposed: it is taken off the list if it is another cluster's now. False where
        it is still this one's: then it stays, for whoever leads this cluster.
        """
        newest = self._newest_submission(job)
        if newest is not None and newest[1].cluster == self._cluster:
            return False
        self._blobs.delete(f"{self._folder}/jobs/{job}")
        return True

    def _newest_epoch(self) -> int:
        return _newest(self._blobs.list(f"{self._folder}/leaders"), f"{self._folder}/leaders")

    def jobs(self) -> list[tuple[Submission, JobReport | None]]:
        """Jobs of this cluster, each with its result if it has ended."""
        found = []
        for path in self._blobs.list(f"{self._folder}/jobs"):
            newest = self._newest_submission(JobName(path.rsplit("/", 1)[1]))
            if newest is None or newest[1].cluster != self._cluster:
                continue
            number, kept = newest
            submission = msgspec.structs.replace(
                kept, settings=with_secrets(kept.settings, self._own)
            )
            self._numbers[submission.job] = number
            path_of_result = f"{_folder(submission.job, number)}/result.json"
            result = self._blobs.get(path_of_result)
            report = None if result is None else _decode(result, JobReport, path_of_result)
            found.append((submission, report))
        return found

    def _newest_submission(self, job: JobName) -> tuple[int, Submission] | None:
        """With its number; None if there is none any more."""
        number = _newest(self._blobs.list(f"{job}/submissions"), f"{job}/submissions")
        path = f"{_folder(job, number)}/submission.json"
        data = self._blobs.get(path) if number else None
        return None if data is None else (number, _decode(data, Submission, path))

    def _clean(self, job: JobName) -> int:
        """Delete submissions that are not the newest; the number of that, or 0."""
        paths = self._blobs.list(f"{job}/submissions")
        newest = _newest(paths, f"{job}/submissions")
        for path in paths:
            if not path.startswith(f"{_folder(job, newest)}/"):
                self._blobs.delete(path)
        return newest

    def _create_next(
        self, path_of: Callable[[int], str], newest: int, data: bytes, failed: str
    ) -> int:
        """Create an object under the first number after `newest` that is free; the number."""
        number = newest + 1
        for _ in range(UNKNOWN_TRIES_MAX):
            path = path_of(number)
            match self._blobs.create(path, data):
                case Created.CREATED:
                    return number
                case Created.EXISTS:
                    if self._blobs.get(path) == data:  # our own, from an unanswered try
                        return number
                    number += 1
                case Created.UNKNOWN:
                    continue
        raise StorageError(
            f"{failed} in {UNKNOWN_TRIES_MAX} tries: the checkpoint storage does not answer, or "
            "many write there at once. Check checkpoint.storage, then try again."
        )


def _folder(job: JobName, number: int) -> str:
    return f"{job}/submissions/{number:020d}"


def _newest(paths: Iterable[str], folder: str) -> int:
    """The largest number in the names of what lies in a folder, or 0."""
    names = (path.removeprefix(f"{folder}/").split("/")[0] for path in paths)
    return max((int(name) for name in names if name.isdecimal()), default=0)


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
