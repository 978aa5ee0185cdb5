"""What a JobManager keeps in the checkpoint storage: its epoch, and the jobs that outlive it.

    _cluster/<cluster>/leaders/<epoch>   created if absent: each JobManager takes the next one
    _cluster/<cluster>/jobs/<job>        this cluster runs or ran that job
    <job>/submissions/<number>/
        submission.json                  created if absent: what was submitted, by which leader
        <digest>.zip                     created if absent: the code that was submitted
        decision.json                    created if absent: whether that submission counts
        claimed.json                     an attempt of it that has claimed the job's journal
        result.json                      the last report of that run, once it has ended

Epochs and numbers are 20 digits. Each JSON object has a `version`, which is 1. One without a
version was written before versions were, and reads as version 1.

A submission counts once its decision accepts it. The newest submission that counts decides about
the job: if it has no result, the cluster that it names runs it, and every other cluster leaves the
job alone. So of two clusters that take the same job the later one has it. A submission of a version
that wrote no decisions has no epoch, and counts from its creation on.

A submit takes five steps. The JobManager lists the job, creates the submission under the next
number and the code beside it, looks whether it still leads the cluster, and only then creates the
decision. A submit that
stops before the last step leaves a submission that never counts and that supersedes nothing. The
next leader makes this final: at its start it creates a decision that refuses what an older epoch
has left undecided. Because a decision is created once, a leader that stood still in the middle of a
submit, or a request that the storage carries out late, changes nothing afterwards.

Submissions older than the newest that counts are deleted at the next submit, each with its code. No
two submissions share an archive, so nothing that is deleted late can be needed. Numbers are never
used again. A name stays on the list when another cluster takes the job, because a deletion that
arrives late could remove the name that a later leader relies on. The list only says where to look.

Passwords are not written: a JobManager has the settings of its cluster from whoever starts it, and
puts them back into what it recovers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from tidegate.errors import CorruptCheckpointError, InternalError, StorageError, check
from tidegate.ids import JobName, LeaderEpoch
from tidegate.masking import MASK, is_secret
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.protocol.messages import JobReport, StoredCode, Submission

T = TypeVar("T")

NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})

_OLD: Final = LeaderEpoch(0)
"""The epoch of a submission that was written before submissions had decisions."""

UNKNOWN_TRIES_MAX = 20
"""A create whose outcome the store does not say is repeated so often, then a JobManager ends, or a
submit is refused: the next one tries with the next number, and an unused number hurts nobody."""


VERSION: Final = 1
"""Of the files here. It grows when a reader of today could misread what is written; new fields with
defaults do not."""


class _Version(msgspec.Struct):
    version: int = VERSION


class _Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a submission counts; `epoch` is that of the leader that decided."""

    accepted: bool
    epoch: LeaderEpoch


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
        #: What `claim_epoch` has returned.
        self._epoch = _OLD
        #: The submission of each job that this cluster runs or ran.
        self._numbers: dict[JobName, int] = {}
        #: What the last `put_submission` of a job has stored.
        self._code: dict[JobName, StoredCode | None] = {}

    def claim_epoch(self, nonce: str) -> LeaderEpoch:
        """Take the next leader epoch: greater than that of every JobManager before."""
        number = self._create_next(
            lambda number: f"{self._folder}/leaders/{number:020d}",
            self._newest_epoch(),
            lambda _: nonce.encode(),
            f"No leader epoch could be claimed for cluster {self._cluster}",
        )
        self._epoch = LeaderEpoch(number)
        return self._epoch

    def is_leader(self, epoch: LeaderEpoch) -> bool:
        """Whether no JobManager of this cluster has claimed a newer epoch."""
        return self._newest_epoch() <= epoch

    def put_submission(self, submission: Submission, code: bytes = b"") -> None:
        """Write what was submitted, and the archive of its code if it has one. The submission does
        not count before `accept`.
        """
        check(self._epoch != _OLD, "A submission was stored without a leader epoch.")
        job = submission.job
        kept = msgspec.structs.replace(
            submission,
            settings=without_secrets(submission.settings, self._own),
            epoch=self._epoch,
        )
        self._blobs.put(f"{self._folder}/jobs/{job}", b"")
        newest = self._clean(job)
        self._numbers[job] = self._create_next(
            lambda number: f"{_folder(job, number)}/submission.json",
            newest,
            lambda number: encode(_with_code_at(kept, number)),
            f"The submission of job {job} could not be written",
        )
        stored = self._code[job] = _with_code_at(kept, self._numbers[job]).code
        if stored is not None:
            self._put_code(stored.path, code)

    def stored_code(self, job: JobName) -> StoredCode | None:
        """The code of the last `put_submission` of the job."""
        return self._code[job]

    def accept(self, job: JobName) -> bool:
        """Make the last `put_submission` of the job count. Call it as the confirmed leader.

        False if a later leader has refused the submission. After a StorageError the outcome is
        unknown; call it again until it returns.
        """
        return self._decide(job, self._numbers[job], accepted=True)

    def put_result(self, report: JobReport) -> None:
        """Make a job's end durable: no later JobManager starts that submission again."""
        number = self._number(report.job)
        self._blobs.put(f"{_folder(report.job, number)}/result.json", encode(report))

    def put_claim(self, job: JobName, attempt: int) -> None:
        """Make it durable that the submission has a journal: a JobMaster of it that finds none is
        not to begin another.
        """
        number = self._number(job)
        self._blobs.put(_claimed(job, number), msgspec.json.encode(attempt))

    def has_moved(self, job: JobName) -> bool:
        """Whether the job belongs to another cluster now, or to none."""
        newest = self._newest_counting(job)
        return newest is None or newest[1].cluster != self._cluster

    def newest(self, job: JobName) -> tuple[Submission, JobReport | None] | None:
        """The submission that decides about a job, of whichever cluster, with its result if it has
        ended.
        """
        newest = self._newest_counting(job)
        if newest is None:
            return None
        number, submission = newest
        if submission.cluster == self._cluster:
            self._numbers[job] = number
        return submission, self._result(job, number)

    def _number(self, job: JobName) -> int:
        number = self._numbers.get(job)
        if number is None:
            raise InternalError(f"job {job} runs or has ended and was neither submitted nor found")
        return number

    def _newest_epoch(self) -> int:
        return _newest(self._blobs.list(f"{self._folder}/leaders"), f"{self._folder}/leaders")

    def jobs(self) -> list[tuple[Submission, JobReport | None]]:
        """Jobs of this cluster, each with its result if it has ended.

        What older leaders left undecided is refused, so that it never counts.
        """
        found = []
        for path in self._blobs.list(f"{self._folder}/jobs"):
            newest = self._newest_counting(JobName(path.rsplit("/", 1)[1]), refuses=True)
            if newest is None or newest[1].cluster != self._cluster:
                continue
            number, kept = newest
            path_of_claim = _claimed(kept.job, number)
            claim = self._blobs.get(path_of_claim)
            submission = msgspec.structs.replace(
                kept,
                settings=with_secrets(kept.settings, self._own),
                claimed_attempt=0 if claim is None else _decode(claim, int, path_of_claim),
            )
            self._numbers[submission.job] = number
            found.append((submission, self._result(submission.job, number)))
        return found

    def _result(self, job: JobName, number: int) -> JobReport | None:
        path = f"{_folder(job, number)}/result.json"
        data = self._blobs.get(path)
        return None if data is None else _decode(data, JobReport, path)

    def _newest_counting(
        self, job: JobName, *, refuses: bool = False
    ) -> tuple[int, Submission] | None:
        """The newest submission that counts, with its number; None if there is none.

        With `refuses`, undecided submissions of older leaders of this cluster are refused on the
        way.
        """
        folder = f"{job}/submissions"
        for number in _numbers(self._blobs.list(folder), folder):
            path = f"{_folder(job, number)}/submission.json"
            data = self._blobs.get(path)
            if data is None:
                continue
            submission = _decode(data, Submission, path)
            if self._counts(submission, number, refuses=refuses):
                return number, submission
        return None

    def _counts(self, submission: Submission, number: int, *, refuses: bool) -> bool:
        if submission.epoch == _OLD:
            return True
        decision = self._decision(submission.job, number)
        if decision is not None:
            return decision.accepted
        ours = submission.cluster == self._cluster and submission.epoch < self._epoch
        if not (refuses and ours):
            return False
        # Its leader may be about to accept it. Whichever decision is created first is final.
        return not self._decide(submission.job, number, accepted=False)

    def _decide(self, job: JobName, number: int, *, accepted: bool) -> bool:
        """Create the submission's decision. False if another leader has decided otherwise."""
        path = f"{_folder(job, number)}/decision.json"
        data = encode(_Decision(accepted=accepted, epoch=self._epoch))
        for _ in range(UNKNOWN_TRIES_MAX):
            match self._blobs.create(path, data):
                case CreateResult.CREATED:
                    return True
                case CreateResult.EXISTS:
                    found = self._decision(job, number)
                    return found is not None and found.accepted == accepted
                case CreateResult.UNKNOWN:
                    continue
        raise StorageError(
            f"The decision about a submission of job {job} could not be written in "
            f"{UNKNOWN_TRIES_MAX} tries: the checkpoint storage does not answer. Check "
            "checkpoint.storage."
        )

    def _decision(self, job: JobName, number: int) -> _Decision | None:
        path = f"{_folder(job, number)}/decision.json"
        data = self._blobs.get(path)
        return None if data is None else _decode(data, _Decision, path)

    def _clean(self, job: JobName) -> int:
        """Delete what the newest submission that counts supersedes; the largest number, or 0."""
        folder = f"{job}/submissions"
        paths = self._blobs.list(folder)
        counting = self._newest_counting(job)
        for path in paths:
            if counting is not None and 0 < _number(path, folder) < counting[0]:
                self._blobs.delete(path)
        return _newest(paths, folder)

    def _put_code(self, path: str, code: bytes) -> None:
        """Create the archive under a name that nobody else uses."""
        for _ in range(UNKNOWN_TRIES_MAX):
            match self._blobs.create(path, code):
                case CreateResult.UNKNOWN:
                    continue
                case CreateResult.EXISTS if self._blobs.get(path) != code:
                    break
                case _:
                    return
        raise StorageError(
            f"The code of the job could not be written to {path}: the checkpoint storage does not "
            "answer, or another file has this name. Check checkpoint.storage, then try again."
        )

    def _create_next(
        self,
        path_of: Callable[[int], str],
        newest: int,
        data_of: Callable[[int], bytes],
        failed: str,
    ) -> int:
        """Create an object under the first number after `newest` that is free; the number."""
        number = newest + 1
        for _ in range(UNKNOWN_TRIES_MAX):
            path, data = path_of(number), data_of(number)
            match self._blobs.create(path, data):
                case CreateResult.CREATED:
                    return number
                case CreateResult.EXISTS:
                    if self._blobs.get(path) == data:  # our own, from an unanswered try
                        return number
                    number += 1
                case CreateResult.UNKNOWN:
                    continue
        raise StorageError(
            f"{failed} in {UNKNOWN_TRIES_MAX} tries: the checkpoint storage does not answer, or "
            "many write there at once. Check checkpoint.storage, then try again."
        )


def _folder(job: JobName, number: int) -> str:
    return f"{job}/submissions/{number:020d}"


def _with_code_at(submission: Submission, number: int) -> Submission:
    """The submission under its number, with the path of its code."""
    code = submission.code
    if code is None:
        return submission
    path = f"{_folder(submission.job, number)}/{code.digest}.zip"
    return msgspec.structs.replace(submission, code=msgspec.structs.replace(code, path=path))


def _number(path: str, folder: str) -> int:
    """The number in the name of what lies in a folder, or 0 if the name is no number."""
    name = path.removeprefix(f"{folder}/").split("/")[0]
    return int(name) if name.isdecimal() else 0


def _numbers(paths: Iterable[str], folder: str) -> list[int]:
    """The numbers in the names of what lies in a folder, largest first."""
    return sorted({_number(path, folder) for path in paths} - {0}, reverse=True)


def _claimed(job: JobName, number: int) -> str:
    return f"{_folder(job, number)}/claimed.json"


def _newest(paths: Iterable[str], folder: str) -> int:
    """The largest number in the names of what lies in a folder, or 0."""
    return max(_numbers(paths, folder), default=0)


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


def encode(stored: msgspec.Struct) -> bytes:
    """The file of a struct: its fields, behind the version."""
    return b'{"version":%d,' % VERSION + msgspec.json.encode(stored).removeprefix(b"{")


def _decode(data: bytes, kind: type[T], path: str) -> T:
    try:
        if issubclass(kind, msgspec.Struct):
            version = msgspec.json.decode(data, type=_Version).version
            if version > VERSION:
                raise CorruptCheckpointError(
                    f"{path} in the checkpoint storage was written by a newer version of tidegate "
                    f"(its format is version {version}, and this one reads {VERSION}). Run the "
                    "job with that version."
                )
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise CorruptCheckpointError(
            f"{path} in the checkpoint storage cannot be read ({error}). If it was edited or is of "
            "another version of tidegate, remove it and submit the job again: its state is safe."
        ) from error
