"""The data that a JobManager keeps in the checkpoint storage: its epoch, and jobs that outlive it.

    _cluster/<cluster>/leaders/<epoch>   created if absent: each JobManager takes the next one
    _cluster/<cluster>/jobs/<job>        this cluster runs or ran that job
    <job>/submissions/<number>/
        submission.json                  created if absent: what was submitted, by which leader
        <digest>.zip                     created if absent: the code that was submitted
        decision.json                    created if absent: whether that submission counts
        claimed.json                     an attempt of it that has claimed the job's journal
        result.json                      the last report of that run, once it has ended

Epochs and numbers are 20 digits. Each JSON object has a `version`, which is 1. An object without a
version is older than this field, and is read as version 1.

A submission counts once its decision accepts it. The newest submission that counts decides about
the job: if it has no result, the cluster whose name it holds runs the job, and every other cluster
ignores the job. So if two clusters accept the same job, the later one owns it. A submission of a
version that wrote no decisions has no epoch, and counts from its creation on.

A submit takes five steps. The JobManager writes the job's name to its list, creates the submission
under the next number, and creates the code next to it. Then it checks that it still leads the
cluster, and only after that it creates the decision. A submit that stops before the last step
leaves a submission that never counts and that supersedes nothing. The next leader makes this final:
at its start it creates a decision that refuses each submission that an older epoch has left
undecided. A decision can be created only once. Therefore a leader that hangs in the middle of a
submit changes nothing later, and neither does a request that the storage carries out late.

Submissions older than the newest that counts are deleted at the next submit, each with its code. No
two submissions share an archive, so a late deletion never removes a file that is needed. Numbers
are never used again. A name stays on the list when another cluster takes the job, because a late
deletion could remove the name that a later leader relies on. The list only says where to look.

Passwords are not written. A JobManager gets the settings of its cluster at its start, from the
process or the user that starts it, and restores the passwords in the jobs that it recovers.
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
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import StoredCode, Submission

T = TypeVar("T")

NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})

_OLD: Final = LeaderEpoch(0)
"""Epoch of a submission that was written before submissions had decisions."""

UNKNOWN_TRIES_MAX = 20
"""Maximum number of tries of a create, also while the storage does not report its outcome. Then the
JobManager ends, or a submit fails. The next one uses the next number. Unused numbers do no harm."""


VERSION: Final = 1
"""Format version of these files. It grows when a current reader could misread a new file. New
fields with defaults do not need a new version."""


class _Version(msgspec.Struct):
    version: int = VERSION


class _Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision whether a submission counts. `epoch` is the epoch of the leader that decided."""

    accepted: bool
    epoch: LeaderEpoch


class JobStore:
    """The jobs and leaders of one cluster in a storage. Methods raise StorageError."""

    def __init__(
        self, blobs: BlobStore, cluster: str, settings: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        """`settings` are the cluster's own settings. A secret that is in them is not written."""
        self._blobs = blobs
        self._cluster = cluster
        self._cluster_settings = settings
        self._folder = f"_cluster/{cluster}"
        #: Epoch that `claim_epoch` has returned.
        self._epoch = _OLD
        #: Number of the submission of each job that this cluster runs or ran.
        self._numbers: dict[JobName, int] = {}
        #: Code that the last `put_submission` of each job has stored.
        self._code: dict[JobName, StoredCode | None] = {}

    def claim_epoch(self, nonce: str) -> LeaderEpoch:
        """Claim and return the next leader epoch. It is greater than every earlier epoch."""
        number = self._create_next(
            lambda number: f"{self._folder}/leaders/{number:020d}",
            self._newest_epoch(),
            lambda _: nonce.encode(),
            f"No leader epoch could be claimed for cluster {self._cluster}",
        )
        self._epoch = LeaderEpoch(number)
        return self._epoch

    def is_leader(self, epoch: LeaderEpoch) -> bool:
        """Return whether no JobManager of this cluster has claimed a newer epoch."""
        return self._newest_epoch() <= epoch

    def put_submission(self, submission: Submission, code: bytes = b"") -> None:
        """Write the submission, and the archive of its code if it has one.

        The submission does not count before `accept`.
        """
        check(self._epoch != _OLD, "A submission was stored without a leader epoch.")
        job = submission.job
        kept = msgspec.structs.replace(
            submission,
            settings=without_secrets(submission.settings, self._cluster_settings),
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
        """Return the code of the job's last `put_submission`; None if it had no code."""
        return self._code[job]

    def accept(self, job: JobName) -> bool:
        """Make the last `put_submission` of the job count. Only the confirmed leader may call this.

        Return False if a later leader has refused the submission. After a StorageError the outcome
        is unknown; the caller repeats the call until it returns.
        """
        return self._decide(job, self._numbers[job], accepted=True)

    def put_result(self, report: JobReport) -> None:
        """Store the result of a job. No later JobManager starts that submission again."""
        number = self._number(report.job)
        self._blobs.put(f"{_folder(report.job, number)}/result.json", encode(report))

    def put_claim(self, job: JobName, attempt: int) -> None:
        """Store that the submission has claimed a journal.

        If a later JobMaster of the submission finds no journal, it must not begin a new one.
        """
        number = self._number(job)
        self._blobs.put(_claim_path(job, number), msgspec.json.encode(attempt))

    def has_moved(self, job: JobName) -> bool:
        """Return whether the job now belongs to another cluster, or to no cluster."""
        newest = self._newest_counting(job)
        return newest is None or newest[1].cluster != self._cluster

    def newest(self, job: JobName) -> tuple[Submission, JobReport | None] | None:
        """Return the submission that decides about a job, with its result if the job has ended.

        It may be a submission of any cluster. Return None if no submission counts.
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
        """Return the jobs of this cluster, each with its result if it has ended.

        Refuse the submissions that older leaders left undecided, so that they never count.
        """
        found = []
        for path in self._blobs.list(f"{self._folder}/jobs"):
            newest = self._newest_counting(JobName(path.rsplit("/", 1)[1]), refuses=True)
            if newest is None or newest[1].cluster != self._cluster:
                continue
            number, kept = newest
            path_of_claim = _claim_path(kept.job, number)
            claim = self._blobs.get(path_of_claim)
            submission = msgspec.structs.replace(
                kept,
                settings=with_secrets(kept.settings, self._cluster_settings),
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
        """Return the newest submission that counts, with its number, or None.

        With `refuses`, also refuse each newer submission that an older leader of this cluster left
        undecided.
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
        """Create the submission's decision. Return False if another leader decided otherwise."""
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
            "checkpoint.dir."
        )

    def _decision(self, job: JobName, number: int) -> _Decision | None:
        path = f"{_folder(job, number)}/decision.json"
        data = self._blobs.get(path)
        return None if data is None else _decode(data, _Decision, path)

    def _clean(self, job: JobName) -> int:
        """Delete the submissions that are older than the newest that counts.

        Return the largest number of a submission of the job, or 0.
        """
        folder = f"{job}/submissions"
        paths = self._blobs.list(folder)
        counting = self._newest_counting(job)
        for path in paths:
            if counting is not None and 0 < _number(path, folder) < counting[0]:
                self._blobs.delete(path)
        return _newest(paths, folder)

    def _put_code(self, path: str, code: bytes) -> None:
        """Create the archive. No other submission uses its path."""
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
            "answer, or another file has this name. Check checkpoint.dir, then try again."
        )

    def _create_next(
        self,
        path_of: Callable[[int], str],
        newest: int,
        data_of: Callable[[int], bytes],
        failed: str,
    ) -> int:
        """Create an object under the first free number after `newest`. Return the number."""
        number = newest + 1
        for _ in range(UNKNOWN_TRIES_MAX):
            path, data = path_of(number), data_of(number)
            match self._blobs.create(path, data):
                case CreateResult.CREATED:
                    return number
                case CreateResult.EXISTS:
                    if self._blobs.get(path) == data:  # ours, from an unanswered try
                        return number
                    number += 1
                case CreateResult.UNKNOWN:
                    continue
        raise StorageError(
            f"{failed} in {UNKNOWN_TRIES_MAX} tries: the checkpoint storage does not answer, or "
            "many write there at once. Check checkpoint.dir, then try again."
        )


def _folder(job: JobName, number: int) -> str:
    return f"{job}/submissions/{number:020d}"


def _with_code_at(submission: Submission, number: int) -> Submission:
    """Return the submission with the path of its code, which depends on its number."""
    code = submission.code
    if code is None:
        return submission
    path = f"{_folder(submission.job, number)}/{code.digest}.zip"
    return msgspec.structs.replace(submission, code=msgspec.structs.replace(code, path=path))


def _number(path: str, folder: str) -> int:
    """Return the number after `folder` in a path, or 0 if the name there is not a number."""
    name = path.removeprefix(f"{folder}/").split("/")[0]
    return int(name) if name.isdecimal() else 0


def _numbers(paths: Iterable[str], folder: str) -> list[int]:
    """Return the distinct numbers after `folder` in the paths, largest first."""
    return sorted({_number(path, folder) for path in paths} - {0}, reverse=True)


def _claim_path(job: JobName, number: int) -> str:
    return f"{_folder(job, number)}/claimed.json"


def _newest(paths: Iterable[str], folder: str) -> int:
    """Return the largest number after `folder` in the paths, or 0."""
    return max(_numbers(paths, folder), default=0)


def without_secrets(
    settings: Mapping[str, Any], cluster_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings with the mask in place of every secret that is the same in
    `cluster_settings`.
    """
    return {
        key: without_secrets(value, _table(cluster_settings, key))
        if isinstance(value, Mapping)
        else (MASK if value and is_secret(key) and cluster_settings.get(key) == value else value)
        for key, value in settings.items()
    }


def with_secrets(
    settings: Mapping[str, Any], cluster_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings with the secrets of `cluster_settings` in place of the masks."""
    return {
        key: with_secrets(value, _table(cluster_settings, key))
        if isinstance(value, Mapping)
        else (cluster_settings.get(key, value) if value == MASK else value)
        for key, value in settings.items()
    }


def _table(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = settings.get(key)
    return table if isinstance(table, Mapping) else {}


def encode(stored: msgspec.Struct) -> bytes:
    """Return the file content of a struct: the version first, and then its fields."""
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
