"""A slot compares the checkpoint storage and the Kafka cluster that it sees with its attempt's."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidegate.commit.journal.entries import Claim, encode_entry, entry_path
from tidegate.config import Config
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.shared_view import SlotView, check_tz_database, check_view
from tidegate.dataplane.task_builder import TaskBuilder
from tidegate.drivers.storage.local import LocalStore
from tidegate.errors import (
    ClusterMismatchError,
    CorruptCheckpointError,
    ExternalError,
    StorageMismatchError,
    is_recoverable,
)
from tidegate.ids import JobName, JournalNumber
from tidegate.protocol.messages import Deploy

JOB = JobName("a")
DEPLOY = cast("Deploy", SimpleNamespace(job=JOB, attempt=3, claim_nonce="mine", kafka_cluster="c1"))


def claim(nonce: str) -> Claim:
    return Claim(
        number=JournalNumber(3),
        nonce=nonce,
        previous="",
        journal_id="j",
        created_ms=0,
        submission_id="s",
        restore="latest",
    )


def view(folder: Path, cluster: str = "c1") -> SlotView:
    log: Any = SimpleNamespace(cluster_id=lambda: cluster)
    return SlotView(
        host="worker-2",
        storage=str(folder),
        brokers="kafka:9092",
        blobs=LocalStore(folder),
        transactions=log,
    )


def written(folder: Path, nonce: str) -> Path:
    LocalStore(folder).put(entry_path(JOB, 3), encode_entry(claim(nonce)))
    return folder


def test_slot_starts_when_the_storage_has_the_claim_of_its_attempt(tmp_path: Path) -> None:
    check_view(DEPLOY, view(written(tmp_path, "mine")))


def test_slot_refuses_a_storage_without_the_claim_of_its_attempt(tmp_path: Path) -> None:
    with pytest.raises(StorageMismatchError) as refused:
        check_view(DEPLOY, view(tmp_path))
    for part in ("worker-2", str(tmp_path), entry_path(JOB, 3), "is not there"):
        assert part in str(refused.value)
    assert is_recoverable(refused.value), "a mount can be corrected while the job waits"


def test_slot_refuses_a_storage_whose_claim_is_of_another_journal(tmp_path: Path) -> None:
    with pytest.raises(StorageMismatchError, match="is of another journal"):
        check_view(DEPLOY, view(written(tmp_path, "theirs")))


def test_slot_reports_a_damaged_claim_as_a_corrupt_checkpoint(tmp_path: Path) -> None:
    LocalStore(tmp_path).put(entry_path(JOB, 3), b"torn")
    with pytest.raises(CorruptCheckpointError, match=entry_path(JOB, 3)):
        check_view(DEPLOY, view(tmp_path))


def test_slot_refuses_brokers_of_another_kafka_cluster_and_names_them(tmp_path: Path) -> None:
    with pytest.raises(ClusterMismatchError) as refused:
        check_view(DEPLOY, view(written(tmp_path, "mine"), "c2"))
    for part in ("worker-2", "kafka:9092", "cluster c2", "cluster c1"):
        assert part in str(refused.value)
    assert is_recoverable(refused.value)


def test_slot_refuses_another_version_of_the_tz_database_and_names_both_hosts() -> None:
    deploy: Any = SimpleNamespace(job=JOB, attempt=3, host="control-1", tz_database="2026f")
    check_tz_database(deploy, "worker-2", "2026f")
    with pytest.raises(ExternalError) as refused:
        check_tz_database(deploy, "worker-2", "2025b")
    for part in ("worker-2 has version 2025b", "control-1 with version 2026f", "job 'a'"):
        assert part in str(refused.value)
    assert is_recoverable(refused.value), "the package can be installed while the job waits"


def test_version_of_the_tz_database_does_not_matter_to_a_job_without_calendar_windows() -> None:
    deploy: Any = SimpleNamespace(job=JOB, attempt=3, host="control-1", tz_database="")
    check_tz_database(deploy, "worker-2", "2025b")


def test_slot_compares_the_storage_before_it_loads_job_code(tmp_path: Path) -> None:
    """The job's code may be in the storage too."""
    submission = SimpleNamespace(working_folder=str(tmp_path))  # nothing else is asked for
    deploy: Any = SimpleNamespace(
        job=JOB,
        attempt=3,
        claim_nonce="mine",
        kafka_cluster="c1",
        submission=submission,
        storage="",
        tz_database="",
    )
    drivers = SimpleNamespace(
        blob_store=lambda url: LocalStore(Path(url)),
        transaction_admin=lambda _: SimpleNamespace(cluster_id=lambda: "c1"),
        process=SimpleNamespace(host="worker-2"),
    )
    around: Any = SimpleNamespace(
        config=Config(), drivers=drivers, counters=Counters(), shared_admin=None
    )
    where = str(tmp_path / Config().checkpoint.dir)
    with pytest.raises(StorageMismatchError, match=re.escape(where)):
        TaskBuilder(deploy, around)
