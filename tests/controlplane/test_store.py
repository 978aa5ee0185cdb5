"""What a JobManager keeps in the storage, and that no kill between two writes revives a job."""

import contextlib
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from tests.controlplane.test_dispatcher import A, submission
from tidegate.controlplane.dispatcher.store import JobStore
from tidegate.errors import CorruptCheckpointError, StorageError
from tidegate.ids import JobName
from tidegate.ports.blobs import BlobStore, Created
from tidegate.protocol.messages import JobReport

HERE = msgspec.structs.replace(submission(), cluster="here")
FINISHED = JobReport(job=A, state="FINISHED")
FIRST = "a/submissions/00000000000000000001"


class Blobs:
    """Objects in a dict; creates may be answered with UNKNOWN, having happened or not."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.unknown: list[bool] = []

    def create(self, path: str, data: bytes) -> Created:
        if self.unknown:
            if self.unknown.pop(0):
                self.objects.setdefault(path, data)
            return Created.UNKNOWN
        if path in self.objects:
            return Created.EXISTS
        self.objects[path] = data
        return Created.CREATED

    def put(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def get(self, path: str) -> bytes | None:
        return self.objects.get(path)

    def list(self, prefix: str) -> list[str]:
        return sorted(path for path in self.objects if path.startswith(f"{prefix}/"))

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)


@pytest.fixture
def blobs() -> Blobs:
    return Blobs()


def store_of(blobs: Blobs, cluster: str = "here") -> JobStore:
    store: BlobStore = blobs  # type: ignore[assignment]  # files are not asked for
    return JobStore(store, cluster)


def test_epochs_grow_per_cluster(blobs: Blobs) -> None:
    assert [store_of(blobs).claim_epoch(f"n{i}") for i in range(12)] == list(range(1, 13))
    assert store_of(blobs, "other").claim_epoch("n") == 1


def test_the_newest_epoch_leads(blobs: Blobs) -> None:
    store = store_of(blobs)
    first = store.claim_epoch("n1")
    assert store.is_leader(first)
    second = store_of(blobs).claim_epoch("n2")
    assert (store.is_leader(first), store.is_leader(second)) == (False, True)
    store_of(blobs, "other").claim_epoch("n3")
    assert store.is_leader(second)


@pytest.mark.parametrize("happened", [True, False])
def test_a_claim_of_unknown_outcome_is_repeated_and_recognised(
    blobs: Blobs, *, happened: bool
) -> None:
    blobs.unknown = [happened]
    assert store_of(blobs).claim_epoch("ours") == 1
    assert store_of(blobs).claim_epoch("theirs") == 2


def test_a_store_that_never_says_is_given_up(blobs: Blobs) -> None:
    blobs.unknown = [False] * 1000
    with pytest.raises(StorageError, match="epoch"):
        store_of(blobs).claim_epoch("n")


def test_a_job_is_found_until_it_has_ended_and_again_when_submitted_anew(blobs: Blobs) -> None:
    store = store_of(blobs)
    store.put_submission(HERE)
    assert store.jobs() == [(HERE, None)]
    store.put_result(FINISHED)
    assert store.jobs() == [(HERE, FINISHED)]
    store.put_submission(HERE)
    assert store.jobs() == [(HERE, None)]
    next_leader = store_of(blobs)
    assert next_leader.jobs() == [(HERE, None)]
    next_leader.put_result(FINISHED)
    assert store.jobs() == [(HERE, FINISHED)]


def test_jobs_of_other_clusters_are_left_alone(blobs: Blobs) -> None:
    store_of(blobs).put_submission(HERE)
    other = msgspec.structs.replace(HERE, cluster="other")
    store_of(blobs, "other").put_submission(other)
    assert store_of(blobs).jobs() == []
    assert store_of(blobs, "other").jobs() == [(other, None)]


def test_a_job_that_another_cluster_has_taken_is_forgotten_without_a_trace_in_its_folder(
    blobs: Blobs,
) -> None:
    store = store_of(blobs)
    store.put_submission(HERE)
    other = msgspec.structs.replace(HERE, cluster="other")
    store_of(blobs, "other").put_submission(other)
    store.forget(A)
    assert not [path for path in blobs.objects if "/jobs/" in path and "other" not in path]
    assert not [path for path in blobs.objects if path.endswith("/result.json")]
    assert store_of(blobs, "other").jobs() == [(other, None)]


def test_a_job_that_another_jobmanager_of_the_cluster_runs_is_found_again(blobs: Blobs) -> None:
    """The one that was deposed forgets a job of which the other one relies on the list."""
    store = store_of(blobs)
    store.put_submission(HERE)
    store.forget(A)
    assert store.jobs() == [(HERE, None)]


def limited(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """After so many writes no more happen."""
    left = writes

    def counted(method: object) -> object:
        def call(*arguments: object) -> object:
            nonlocal left
            if left == 0:
                raise StorageError("full")
            left -= 1
            return method(*arguments)  # type: ignore[operator]

        return call

    monkeypatch.setattr(blobs, "create", counted(blobs.create))
    monkeypatch.setattr(blobs, "put", counted(blobs.put))
    monkeypatch.setattr(blobs, "delete", counted(blobs.delete))


@pytest.mark.parametrize("writes", range(4))
def test_a_kill_between_two_writes_of_a_submit_revives_no_ended_job(
    blobs: Blobs, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(blobs)
    store.put_submission(HERE)
    store.put_result(FINISHED)
    anew = msgspec.structs.replace(HERE, id="second")
    limited(blobs, monkeypatch, writes)
    with contextlib.suppress(StorageError):
        store.put_submission(anew)
    ((found, result),) = store.jobs()
    assert result == FINISHED or found == anew, "the first run would be run again"


@pytest.mark.parametrize("writes", range(3))
@pytest.mark.parametrize("before", ["nothing", "ended", "another cluster's"])
def test_a_submit_that_fails_leaves_nothing_that_a_later_jobmanager_would_run(
    blobs: Blobs, writes: int, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(blobs)
    if before == "ended":
        store.put_submission(HERE)
        store.put_result(FINISHED)
    elif before != "nothing":
        other = msgspec.structs.replace(HERE, cluster="other")
        store_of(blobs, "other").put_submission(other)
    limited(blobs, monkeypatch, writes)
    try:
        store.put_submission(HERE)
    except StorageError:
        assert all(result is not None for _, result in store.jobs())
    else:
        assert store.jobs() == [(HERE, None)]


def late(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, name: str) -> list[Callable[[], object]]:
    """What is written from now on by this method arrives when it is called, and nobody answers."""
    under_way: list[Callable[[], object]] = []
    method = getattr(blobs, name)

    def unanswered(*arguments: object) -> Created:
        under_way.append(partial(method, *arguments))
        if name == "create":
            return Created.UNKNOWN
        raise StorageError("no answer")

    monkeypatch.setattr(blobs, name, unanswered)
    return under_way


def test_a_submit_that_arrives_late_takes_no_job_back(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that was given up for it, while another cluster has taken the job meanwhile."""
    with monkeypatch.context() as patched:
        under_way = late(blobs, patched, "create")
        with pytest.raises(StorageError, match="submission of job a could not be written"):
            store_of(blobs, "other").put_submission(msgspec.structs.replace(HERE, cluster="other"))
    store_of(blobs).put_submission(HERE)
    for request in under_way:
        request()
    assert store_of(blobs).jobs() == [(HERE, None)]
    assert store_of(blobs, "other").jobs() == []


def test_a_result_that_arrives_late_ends_no_later_run(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = store_of(blobs), store_of(blobs)
    first.put_submission(HERE)
    with monkeypatch.context() as patched:
        under_way = late(blobs, patched, "put")
        with contextlib.suppress(StorageError):
            first.put_result(FINISHED)
    anew = msgspec.structs.replace(HERE, id="second")
    later.put_submission(anew)
    for request in under_way:
        request()
    assert store_of(blobs).jobs() == [(anew, None)]


@pytest.mark.parametrize("happened", [True, False])
def test_a_submit_of_unknown_outcome_is_repeated_and_recognised(
    blobs: Blobs, *, happened: bool
) -> None:
    blobs.unknown = [happened]
    store = store_of(blobs)
    store.put_submission(HERE)
    assert [path for path in blobs.objects if path.endswith("submission.json")] == [
        f"{FIRST}/submission.json"
    ]
    store.put_result(FINISHED)
    assert store_of(blobs).jobs() == [(HERE, FINISHED)]


def test_of_two_that_submit_at_once_the_later_has_the_job(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgspec.structs.replace(HERE, cluster="other")
    listed = blobs.list

    def meanwhile(prefix: str) -> list[str]:
        found = listed(prefix)
        if prefix == "a/submissions":
            monkeypatch.setattr(blobs, "list", listed)
            store_of(blobs, "other").put_submission(other)
        return found

    monkeypatch.setattr(blobs, "list", meanwhile)
    store_of(blobs).put_submission(HERE)
    assert store_of(blobs).jobs() == [(HERE, None)]
    assert store_of(blobs, "other").jobs() == []


def test_what_others_put_beside_the_numbers_is_none(blobs: Blobs) -> None:
    store = store_of(blobs)
    store.claim_epoch("n")
    store.put_submission(HERE)
    blobs.objects["a/submissions/.DS_Store"] = blobs.objects["_cluster/here/leaders/.x"] = b""
    assert store.jobs() == [(HERE, None)]
    assert store.claim_epoch("m") == 2


def test_two_submissions_of_a_job_are_kept_and_their_numbers_grow(blobs: Blobs) -> None:
    store = store_of(blobs)
    for number in range(12):
        store.put_submission(msgspec.structs.replace(HERE, id=str(number)))
        store.put_result(FINISHED)
    kept = [path for path in sorted(blobs.objects) if path.startswith("a/")]
    assert kept == [
        f"a/submissions/{number:020d}/{name}.json"
        for number in (11, 12)
        for name in ("result", "submission")
    ]


def test_a_torn_submission_is_named(blobs: Blobs) -> None:
    store_of(blobs).put_submission(HERE)
    blobs.objects[f"{FIRST}/submission.json"] = b"{"
    with pytest.raises(CorruptCheckpointError, match=rf"{FIRST}/submission\.json"):
        store_of(blobs).jobs()


def test_names_are_paths_of_the_storage(blobs: Blobs) -> None:
    store = store_of(blobs)
    store.claim_epoch("n")
    store.put_submission(HERE)
    store.put_result(FINISHED)
    assert sorted(blobs.objects) == [
        "_cluster/here/jobs/a",
        "_cluster/here/leaders/00000000000000000001",
        f"{FIRST}/result.json",
        f"{FIRST}/submission.json",
    ]
    assert JobName("a") == A


def test_a_password_of_the_cluster_is_not_written_down_and_is_there_after_recovery(
    blobs: Blobs,
) -> None:
    def settings(password: str) -> dict[str, object]:
        properties = {"sasl.username": "job", "sasl.password": password}
        sources = {"orders": {"properties": {"sasl.password": password}}}
        return {"kafka": {"bootstrap": "b", "properties": properties}, "sources": sources}

    store: BlobStore = blobs  # type: ignore[assignment]  # files are not asked for
    own = settings("s3cr3t")
    submitted = msgspec.structs.replace(HERE, settings=settings("s3cr3t"))
    JobStore(store, "here", own).put_submission(submitted)
    assert not any(b"s3cr3t" in data for data in blobs.objects.values())
    assert JobStore(store, "here", own).jobs() == [(submitted, None)]
    # One that the cluster does not have must be kept, or the job could not be recovered.
    other = msgspec.structs.replace(HERE, settings=settings("0ther"))
    JobStore(store, "here", own).put_submission(other)
    assert JobStore(store, "here", own).jobs() == [(other, None)]
