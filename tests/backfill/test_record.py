"""The record of a backfill: found again, never mixed with another, never over a live job."""

from __future__ import annotations

import io
import re
import time
import zipfile
from typing import Any

import msgspec
import pytest

from tests.controlplane.jobmanager.dispatching import submission as any_submission
from tidegate.api.code.archive import CodeArchive
from tidegate.backfill.record import BackfillRecords, continued
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.drivers.storage import open_store
from tidegate.errors import RefusedError, StorageError
from tidegate.ids import Uid
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import PartitionEnd, StoredCode, Submission

ENDS = (PartitionEnd(source=Uid("orders"), topic="o", partition=0, offset=100),)


def packed(**files: str) -> CodeArchive:
    """An archive of modules, and of a data file that is never the same."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(f"{name}.py", text)
        archive.writestr("a.log", str(time.monotonic_ns()))
    found = data.getvalue()
    return CodeArchive(data=found, digest="abc", size=1_000, files=(), left_out=())


CODE = packed(orders="a = 1")


def requested(**changes: Any) -> Submission:
    given = any_submission()
    code = StoredCode(digest=CODE.digest, size=CODE.size)
    return msgspec.structs.replace(given, bounded=True, code=code, id="new", **changes)


JOB = requested().job


@pytest.fixture
def storage() -> BlobStore:
    return open_store("memory:///")


def records(storage: BlobStore) -> BackfillRecords:
    return BackfillRecords(storage, JOB, {})


def begin(storage: BlobStore, **changes: Any) -> Submission:
    return records(storage).begin(requested(**changes), CODE, ENDS, "now")


def find(storage: BlobStore, *, has_lock: bool = True, job_is_stopped: bool = False) -> Any:
    return records(storage).find(has_lock=has_lock, job_is_stopped=job_is_stopped)


def live(storage: BlobStore, *, session_cluster: bool) -> JobStore:
    store = JobStore(storage, "here")
    store.claim_epoch("nonce")
    given = msgspec.structs.replace(
        any_submission(), cluster="here", session_cluster=session_cluster
    )
    store.put_submission(given)
    store.accept(JOB)
    return store


def test_a_job_without_a_submission_has_no_backfill(storage: BlobStore) -> None:
    assert find(storage) is None


def test_backfill_record_is_found_again_with_its_end_offsets_and_its_code(
    storage: BlobStore,
) -> None:
    begun = begin(storage)
    found = find(storage)
    assert not found.finished
    assert (found.submission.id, found.submission.ends) == ("new", ENDS)
    assert begun.code is not None
    assert found.submission.code == begun.code
    assert storage.get(begun.code.path) == CODE.data


def test_changed_modules_refuse_a_backfill_and_changed_data_files_do_not(
    storage: BlobStore,
) -> None:
    begun = begin(storage)
    ours = records(storage)
    assert ours.changed_modules(begun, packed(orders="a = 1")) == []
    assert ours.changed_modules(begun, packed(orders="a = 2", more="")) == ["more.py", "orders.py"]
    with pytest.raises(RefusedError, match=r"the code has changed \(orders.py\)"):
        continued(begun, requested(), "now", ["orders.py"])


def test_backfill_record_whose_code_archive_is_gone_is_refused(storage: BlobStore) -> None:
    begun = begin(storage)
    assert begun.code is not None
    storage.delete(begun.code.path)
    with pytest.raises(RefusedError, match="--new"):
        records(storage).changed_modules(begun, CODE)


def test_finished_backfill_is_found_as_finished(storage: BlobStore) -> None:
    begin(storage)
    again = records(storage)
    assert again.find(has_lock=True, job_is_stopped=False) is not None
    again.finish(5, 5, {"hourly": 2})
    assert find(storage).finished


def test_newer_backfill_record_replaces_an_older_one(storage: BlobStore) -> None:
    begin(storage)
    records(storage).begin(msgspec.structs.replace(requested(), id="newer"), CODE, (), "now")
    assert find(storage).submission.id == "newer"


def test_backfill_record_takes_the_job_away_from_a_session_cluster(storage: BlobStore) -> None:
    store = live(storage, session_cluster=True)
    records(storage).begin(requested(), CODE, ENDS, "now")
    assert store.has_moved(JOB)
    assert store.jobs() == []


def test_a_job_of_a_session_cluster_is_live_until_it_has_a_result(storage: BlobStore) -> None:
    store = live(storage, session_cluster=True)
    with pytest.raises(RefusedError, match=r"session cluster 'here'.*tidegate stop"):
        find(storage)
    assert find(storage, job_is_stopped=True) is None
    store.put_result(JobReport(job=JOB, state=JobState.FINISHED))
    assert find(storage) is None


def test_run_without_a_result_counts_as_dead_only_if_its_lock_is_free(storage: BlobStore) -> None:
    live(storage, session_cluster=False)
    assert find(storage, has_lock=True) is None
    with pytest.raises(RefusedError, match="--job-is-stopped"):
        find(storage, has_lock=False)
    assert find(storage, has_lock=False, job_is_stopped=True) is None


def test_backfill_is_refused_if_another_command_begins_one_at_the_same_time(
    storage: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other command lists the job in between, as a later leader: the first is refused."""
    before = JobStore.accept

    def beaten(store: JobStore, job: Any) -> bool:
        monkeypatch.setattr(JobStore, "accept", before)
        other = JobStore(storage, f"_backfill-{JOB}")
        other.claim_epoch("other")
        other.jobs()
        return store.accept(job)

    monkeypatch.setattr(JobStore, "accept", beaten)
    with pytest.raises(StorageError, match="at the same time"):
        begin(storage)
    assert find(storage) is None


def test_a_newer_submission_takes_the_job_from_a_backfill(storage: BlobStore) -> None:
    begin(storage)
    assert records(storage).owns_job("new")
    live(storage, session_cluster=True)
    assert not records(storage).owns_job("new")


def test_backfill_is_continued_if_only_the_properties_of_a_source_differ() -> None:
    settings: dict[str, object] = {"sources": {"orders": {"topic": None, "properties": {"a": "b"}}}}
    recorded = requested(to="now")
    continued(recorded, msgspec.structs.replace(requested(), settings=settings), "now")


def test_continued_backfill_keeps_the_recorded_id_and_may_have_another_parallelism() -> None:
    recorded = requested(parallelism=2, ends=ENDS, to="now", cluster="_backfill-a")
    again = requested(parallelism=5)
    ours = continued(recorded, msgspec.structs.replace(again, id="other"), "now")
    assert (ours.id, ours.ends, ours.parallelism) == ("new", ENDS, 5)


@pytest.mark.parametrize(
    ("changes", "to", "said"),
    [
        ({"fingerprint": "other"}, "now", "the pipeline has changed"),
        ({"params": {"minimum": "secret"}}, "now", "--set differs in minimum"),
        ({}, "2026-01-01", "--to was now, and this command has 2026-01-01"),
        ({"restore": "none"}, "now", "--restore differs"),
        ({"accept_data_loss": True}, "now", "--accept-data-loss is new"),
        ({"settings": {"sources": {"orders": {"topic": "x"}}}}, "now", "a topic has changed"),
    ],
)
def test_command_that_differs_from_the_recorded_backfill_is_refused(
    changes: dict[str, Any], to: str, said: str
) -> None:
    recorded = msgspec.structs.replace(requested(), ends=ENDS, to="now")
    with pytest.raises(RefusedError, match=re.escape(said)) as refused:
        continued(recorded, msgspec.structs.replace(requested(), **changes), to)
    assert "--new" in str(refused.value)
    assert "secret" not in str(refused.value)
