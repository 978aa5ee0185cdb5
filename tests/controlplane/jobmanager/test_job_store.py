"""What a JobManager keeps in the storage, and that no kill between two writes revives a job."""

import contextlib
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from tests.controlplane.jobmanager.dispatching import A, submission
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.errors import CorruptCheckpointError, InternalError, StorageError
from tidegate.ids import JobName, LeaderEpoch
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import StoredCode, Submission

HERE = msgspec.structs.replace(submission(), cluster="here")
FINISHED = JobReport(job=A, state=JobState.FINISHED)
FIRST = "a/submissions/00000000000000000001"


class Blobs:
    """Objects in a dict; creates may be answered with UNKNOWN, having happened or not."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.unknown: list[bool] = []

    def create(self, path: str, data: bytes) -> CreateResult:
        if self.unknown:
            if self.unknown.pop(0):
                self.objects.setdefault(path, data)
            return CreateResult.UNKNOWN
        if path in self.objects:
            return CreateResult.EXISTS
        self.objects[path] = data
        return CreateResult.CREATED

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


def leader_of(blobs: Blobs, cluster: str = "here") -> JobStore:
    """The store of the next JobManager of this cluster."""
    store = store_of(blobs, cluster)
    store.claim_epoch(f"leader {len(blobs.list(f'_cluster/{cluster}/leaders'))}")
    return store


def submit(store: JobStore, submitted: Submission = HERE) -> None:
    """Stores and accepts a submission, as a leading JobManager does for a submit."""
    store.put_submission(submitted)
    assert store.accept(submitted.job)


def jobs_of(store: JobStore) -> list[tuple[Submission, JobReport | None]]:
    """The jobs as they were submitted."""
    return [
        (msgspec.structs.replace(kept, epoch=LeaderEpoch(0)), result)
        for kept, result in store.jobs()
    ]


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
def test_epoch_claim_of_unknown_outcome_is_retried_and_recognised(
    blobs: Blobs, *, happened: bool
) -> None:
    blobs.unknown = [happened]
    assert store_of(blobs).claim_epoch("ours") == 1
    assert store_of(blobs).claim_epoch("theirs") == 2


def test_epoch_claim_fails_if_the_outcome_stays_unknown(blobs: Blobs) -> None:
    blobs.unknown = [False] * 1000
    with pytest.raises(StorageError, match="epoch"):
        store_of(blobs).claim_epoch("n")


def test_job_has_a_result_only_between_its_end_and_the_next_submission(blobs: Blobs) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    assert jobs_of(store) == [(HERE, None)]
    store.put_result(FINISHED)
    assert jobs_of(store) == [(HERE, FINISHED)]
    submit(store, HERE)
    assert jobs_of(store) == [(HERE, None)]
    next_leader = leader_of(blobs)
    assert jobs_of(next_leader) == [(HERE, None)]
    next_leader.put_result(FINISHED)
    assert jobs_of(store) == [(HERE, FINISHED)]


def test_store_lists_only_jobs_of_its_own_cluster(blobs: Blobs) -> None:
    submit(leader_of(blobs), HERE)
    other = msgspec.structs.replace(HERE, cluster="other")
    submit(leader_of(blobs, "other"), other)
    assert jobs_of(leader_of(blobs)) == []
    assert jobs_of(leader_of(blobs, "other")) == [(other, None)]


def test_job_that_another_cluster_accepted_has_moved_and_gets_no_result(
    blobs: Blobs,
) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    assert not store.has_moved(A)
    other = msgspec.structs.replace(HERE, cluster="other")
    submit(leader_of(blobs, "other"), other)
    assert store.has_moved(A)
    assert jobs_of(leader_of(blobs)) == []
    assert not [path for path in blobs.objects if path.endswith("/result.json")]
    assert jobs_of(leader_of(blobs, "other")) == [(other, None)]


def limited(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Makes every write after the first `writes` ones fail."""
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


@pytest.mark.parametrize("writes", range(5))
def test_kill_between_two_writes_of_a_submit_does_not_restart_an_ended_job(
    blobs: Blobs, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    store.put_result(FINISHED)
    anew = msgspec.structs.replace(HERE, id="second")
    limited(blobs, monkeypatch, writes)
    with contextlib.suppress(StorageError):
        submit(store, anew)
    ((found, result),) = jobs_of(store)
    assert result == FINISHED or found == anew, "the first run would be run again"


@pytest.mark.parametrize("writes", range(4))
@pytest.mark.parametrize("before", ["nothing", "ended", "another cluster's"])
def test_failed_submit_is_never_run_and_leaves_another_clusters_job_in_place(
    blobs: Blobs, writes: int, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = leader_of(blobs), leader_of(blobs, "other")
    if before == "ended":
        submit(store, HERE)
        store.put_result(FINISHED)
    elif before != "nothing":
        submit(other, msgspec.structs.replace(HERE, cluster="other"))
    theirs = jobs_of(other)
    with monkeypatch.context() as patched:
        limited(blobs, patched, writes)
        try:
            submit(store, HERE)
        except StorageError:
            accepted = False
        else:
            accepted = True
    if accepted:
        assert jobs_of(leader_of(blobs)) == [(HERE, None)]
        assert jobs_of(other) == []
    else:
        assert all(result is not None for _, result in jobs_of(leader_of(blobs)))
        assert jobs_of(other) == theirs, "a submission that was not accepted supersedes nothing"


def late(blobs: Blobs, monkeypatch: pytest.MonkeyPatch, name: str) -> list[Callable[[], object]]:
    """Delays all further writes by this method until the test calls them. The writer gets no
    answer.
    """
    under_way: list[Callable[[], object]] = []
    method = getattr(blobs, name)

    def unanswered(*arguments: object) -> CreateResult:
        under_way.append(partial(method, *arguments))
        if name == "create":
            return CreateResult.UNKNOWN
        raise StorageError("no answer")

    monkeypatch.setattr(blobs, name, unanswered)
    return under_way


def test_submit_that_arrives_late_does_not_take_the_job_from_another_cluster(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submit failed for its client, and another cluster takes the job before the request
    arrives.
    """
    abandoned = leader_of(blobs, "other")
    with monkeypatch.context() as patched:
        under_way = late(blobs, patched, "create")
        with pytest.raises(StorageError, match="submission of job a could not be written"):
            submit(abandoned, msgspec.structs.replace(HERE, cluster="other"))
    submit(leader_of(blobs), HERE)
    for request in under_way:
        request()
    assert jobs_of(leader_of(blobs)) == [(HERE, None)]
    assert jobs_of(leader_of(blobs, "other")) == []


def test_submit_that_storage_never_acknowledged_is_not_run_by_a_later_jobmanager(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client was notified that the submit failed."""
    leader = leader_of(blobs)
    with monkeypatch.context() as patched:
        under_way = late(blobs, patched, "create")
        with pytest.raises(StorageError, match="submission of job a could not be written"):
            submit(leader, HERE)
    for request in under_way:
        request()
    assert f"{FIRST}/submission.json" in blobs.objects
    assert jobs_of(leader_of(blobs)) == []


@pytest.mark.parametrize("arrives", ["before the next leader looks", "afterwards"])
def test_decision_of_unknown_outcome_is_final_once_the_next_leader_has_read_it(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch, arrives: str
) -> None:
    old = leader_of(blobs)
    old.put_submission(HERE)
    with monkeypatch.context() as patched:
        under_way = late(blobs, patched, "create")
        with pytest.raises(StorageError, match="decision about a submission of job a"):
            old.accept(A)
    if arrives == "afterwards":
        found = jobs_of(leader_of(blobs))
        under_way[0]()
        assert not old.accept(A)
        assert found == []
    else:
        under_way[0]()
        found = jobs_of(leader_of(blobs))
        assert old.accept(A)
        assert found == [(HERE, None)]
    assert jobs_of(leader_of(blobs)) == found


def test_submission_of_an_old_version_counts_without_a_decision(blobs: Blobs) -> None:
    """The object of the submission has no epoch, and no other object is next to it."""
    blobs.objects[f"{FIRST}/submission.json"] = msgspec.json.encode(HERE)
    blobs.objects["_cluster/here/jobs/a"] = b""
    assert leader_of(blobs).jobs() == [(HERE, None)]


def test_submission_without_a_leader_epoch_raises_internal_error(blobs: Blobs) -> None:
    """It would count at once."""
    with pytest.raises(InternalError, match="without a leader epoch"):
        store_of(blobs).put_submission(HERE)


def test_result_that_arrives_late_does_not_end_a_newer_submission(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, later = leader_of(blobs), leader_of(blobs)
    submit(first, HERE)
    with monkeypatch.context() as patched:
        under_way = late(blobs, patched, "put")
        with contextlib.suppress(StorageError):
            first.put_result(FINISHED)
    anew = msgspec.structs.replace(HERE, id="second")
    submit(later, anew)
    for request in under_way:
        request()
    assert jobs_of(leader_of(blobs)) == [(anew, None)]


@pytest.mark.parametrize("happened", [True, False])
def test_submit_of_unknown_outcome_is_retried_and_recognised(
    blobs: Blobs, *, happened: bool
) -> None:
    store = leader_of(blobs)
    blobs.unknown = [happened]
    submit(store, HERE)
    assert [path for path in blobs.objects if path.endswith("submission.json")] == [
        f"{FIRST}/submission.json"
    ]
    store.put_result(FINISHED)
    assert jobs_of(leader_of(blobs)) == [(HERE, FINISHED)]


def test_later_of_two_concurrent_submits_owns_the_job(
    blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = msgspec.structs.replace(HERE, cluster="other")
    listed = blobs.list

    def meanwhile(prefix: str) -> list[str]:
        found = listed(prefix)
        if prefix == "a/submissions":
            monkeypatch.setattr(blobs, "list", listed)
            submit(leader_of(blobs, "other"), other)
        return found

    monkeypatch.setattr(blobs, "list", meanwhile)
    submit(leader_of(blobs), HERE)
    assert jobs_of(leader_of(blobs)) == [(HERE, None)]
    assert jobs_of(leader_of(blobs, "other")) == []


def test_store_ignores_foreign_files(blobs: Blobs) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    blobs.objects["a/submissions/.DS_Store"] = blobs.objects["_cluster/here/leaders/.x"] = b""
    assert jobs_of(store) == [(HERE, None)]
    assert store.claim_epoch("m") == 2


def test_store_keeps_the_two_newest_submissions_of_a_job(blobs: Blobs) -> None:
    store = leader_of(blobs)
    for number in range(12):
        submit(store, msgspec.structs.replace(HERE, id=str(number)))
        store.put_result(FINISHED)
    kept = [path for path in sorted(blobs.objects) if path.startswith("a/")]
    assert kept == [
        f"a/submissions/{number:020d}/{name}.json"
        for number in (11, 12)
        for name in ("decision", "result", "submission")
    ]


def test_submissions_that_were_not_accepted_do_not_delete_the_accepted_one(blobs: Blobs) -> None:
    submit(leader_of(blobs), HERE)
    for number in range(3):
        leader_of(blobs).put_submission(msgspec.structs.replace(HERE, id=str(number)))
    assert jobs_of(leader_of(blobs)) == [(HERE, None)]


CODE = b"files"
STORED = StoredCode(digest="0123abcd", size=len(CODE))
WITH_CODE = msgspec.structs.replace(HERE, code=STORED)


def test_code_is_stored_next_to_its_submission_and_found_by_later_leaders(
    blobs: Blobs,
) -> None:
    store = leader_of(blobs)
    store.put_submission(WITH_CODE, CODE)
    assert store.accept(A)
    path = f"{FIRST}/0123abcd.zip"
    assert blobs.objects[path] == CODE
    assert store.stored_code(A) == msgspec.structs.replace(STORED, path=path)
    ((found, _),) = leader_of(blobs).jobs()
    assert found.code == store.stored_code(A)


def test_code_is_deleted_together_with_its_submission(blobs: Blobs) -> None:
    store, kept = leader_of(blobs), []
    for number in range(4):
        code = f"files {number}".encode()
        store.put_submission(msgspec.structs.replace(WITH_CODE, id=str(number)), code)
        kept.append(sorted(blobs.objects[path] for path in blobs.list("a") if "zip" in path))
        assert store.accept(A)
        store.put_result(FINISHED)
    assert kept == [
        [b"files 0"],
        [b"files 0", b"files 1"],
        [b"files 1", b"files 2"],
        [b"files 2", b"files 3"],
    ]


@pytest.mark.parametrize(
    ("written", "answer", "stored"),
    [
        (None, CreateResult.UNKNOWN, False),
        (b"of somebody else", CreateResult.EXISTS, False),
        (CODE, CreateResult.EXISTS, True),  # our own, from an unanswered try
    ],
)
def test_a_submission_is_stored_only_with_its_code(
    blobs: Blobs,
    monkeypatch: pytest.MonkeyPatch,
    written: bytes | None,
    answer: CreateResult,
    *,
    stored: bool,
) -> None:
    create = blobs.create

    def answered(path: str, data: bytes) -> CreateResult:
        if not path.endswith(".zip"):
            return create(path, data)
        if written is not None:
            blobs.objects[path] = written
        return answer

    monkeypatch.setattr(blobs, "create", answered)
    store = leader_of(blobs)
    if stored:
        store.put_submission(WITH_CODE, CODE)
        return
    with pytest.raises(StorageError, match="code of the job could not be written to a/submissions"):
        store.put_submission(WITH_CODE, CODE)
    assert leader_of(blobs).jobs() == []


def test_torn_submission_raises_an_error_with_its_path(blobs: Blobs) -> None:
    submit(leader_of(blobs), HERE)
    blobs.objects[f"{FIRST}/submission.json"] = b"{"
    with pytest.raises(CorruptCheckpointError, match=rf"{FIRST}/submission\.json"):
        jobs_of(leader_of(blobs))


def test_submitted_job_has_the_expected_storage_paths(blobs: Blobs) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    store.put_result(FINISHED)
    assert sorted(blobs.objects) == [
        "_cluster/here/jobs/a",
        "_cluster/here/leaders/00000000000000000001",
        f"{FIRST}/decision.json",
        f"{FIRST}/result.json",
        f"{FIRST}/submission.json",
    ]
    assert JobName("a") == A


def test_cluster_password_is_not_stored_and_is_filled_in_on_recovery(
    blobs: Blobs,
) -> None:
    def settings(password: str) -> dict[str, object]:
        properties = {"sasl.username": "job", "sasl.password": password}
        sources = {"orders": {"properties": {"sasl.password": password}}}
        return {"kafka": {"bootstrap_servers": "b", "properties": properties}, "sources": sources}

    store: BlobStore = blobs  # type: ignore[assignment]  # files are not asked for

    def leader(own: dict[str, object]) -> JobStore:
        made = JobStore(store, "here", own)
        made.claim_epoch(f"leader {len(blobs.objects)}")
        return made

    own = settings("s3cr3t")
    submitted = msgspec.structs.replace(HERE, settings=settings("s3cr3t"))
    submit(leader(own), submitted)
    assert not any(b"s3cr3t" in data for data in blobs.objects.values())
    assert jobs_of(leader(own)) == [(submitted, None)]
    # One that the cluster does not have must be kept, or the job could not be recovered.
    other = msgspec.structs.replace(HERE, settings=settings("0ther"))
    submit(leader(own), other)
    assert jobs_of(leader(own)) == [(other, None)]


def test_files_have_version_1_and_are_readable_without_it(blobs: Blobs) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    store.put_result(FINISHED)
    for name in ("submission.json", "decision.json", "result.json"):
        path = f"{FIRST}/{name}"
        stored = msgspec.json.decode(blobs.objects[path])
        assert stored.pop("version") == 1
        blobs.objects[path] = msgspec.json.encode(stored)
    assert jobs_of(leader_of(blobs)) == [(HERE, FINISHED)]


@pytest.mark.parametrize("name", ["submission.json", "decision.json", "result.json"])
def test_file_of_a_newer_version_is_refused_with_its_name(blobs: Blobs, name: str) -> None:
    store = leader_of(blobs)
    submit(store, HERE)
    store.put_result(FINISHED)
    path = f"{FIRST}/{name}"
    newer = {**msgspec.json.decode(blobs.objects[path]), "version": 2}
    blobs.objects[path] = msgspec.json.encode(newer)
    with pytest.raises(CorruptCheckpointError, match=rf"{name} .* newer version of tidegate"):
        jobs_of(leader_of(blobs))
