"""`tidegate txn` and the transactions of tidegate's own jobs.

The command names the job of a transaction. It does not abort a transaction that a checkpoint
needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.support.brokers import create_topic, unique
from integration.support.txn_command import Txn, in_folder, normalised, opened
from integration.support.user_project import Folder, assert_golden
from tidegate.commit.journal.entries import (
    AnyEntry,
    Claim,
    Publication,
    Settled,
    encode_entry,
    entry_path,
)
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.drivers.storage import open_store
from tidegate.ids import Attempt, CheckpointId, JobName, JournalNumber, TransactionalId
from tidegate.protocol.subtask_snapshot import PreparedTransaction

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(180),
    # kafka-python leaves sockets of failed connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def txn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Txn:
    return in_folder(monkeypatch, tmp_path)


class Journal:
    """A job's journal that the test writes itself, in the real format."""

    def __init__(self, folder: Path, job: str) -> None:
        self.folder, self.job = folder, JobName(job)
        self._entries: list[AnyEntry] = []

    def header(self) -> dict[str, Any]:
        number = len(self._entries) + 1
        return {
            "number": JournalNumber(number),
            "nonce": f"n{number}",
            "previous": self._entries[-1].nonce if self._entries else "",
            "journal_id": "j1",
            "created_ms": 0,
        }

    def write(self, entry: AnyEntry) -> None:
        path = entry_path(self.job, entry.number)
        open_store(str(self.folder)).create(path, encode_entry(entry))
        self._entries.append(entry)

    def claim(self) -> None:
        self.write(Claim(**self.header(), submission_id="s", restore="latest"))


@pytest.mark.slow
def test_txn_abort_refuses_a_transaction_that_the_journal_may_need(
    any_kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    bootstrap = any_kafka.bootstrap
    topic, job = unique("totals"), unique("order-totals")
    create_topic(bootstrap, topic, partitions=1)
    name = f"tidegate.{job}.j1.totals.1.0.0"
    producer = opened(bootstrap, name, topic)
    log = KafkaTransactionAdmin({"bootstrap.servers": bootstrap})
    facts = log.describe(TransactionalId(name))
    assert facts is not None
    cluster = log.cluster_id()
    log.close()
    storage = ("--storage", str(tmp_path / "checkpoints"))

    def refused(golden: str) -> None:
        answer = txn("abort", name, "--yes", *storage, kafka=bootstrap)
        assert answer.code == 2
        assert_golden(golden, normalised(answer.err.rstrip("\n"), bootstrap))
        assert txn("list", "--job", job, "--json", kafka=bootstrap).json["transactions"]

    def journal_status() -> str:
        shown = txn("show", name, *storage, "--json", kafka=bootstrap)
        return str(shown.json["journal"])

    refused("txn-abort-journal-unknown")
    journal = Journal(tmp_path / "checkpoints", job)
    journal.claim()
    refused("txn-abort-current")
    assert journal_status() == "current_attempt"
    named = PreparedTransaction(
        cluster_id=cluster,
        transactional_id=TransactionalId(name),
        producer_id=facts.producer_id,
        epoch=facts.epoch,
        start_ms=facts.start_ms,
    )
    journal.write(
        Publication(
            **journal.header(),
            attempt=Attempt(1),
            checkpoint=CheckpointId(Attempt(1), 1),
            submission_id="s",
            manifest="m",
            sha256="x",
            final=False,
            transactions=(named,),
        )
    )
    refused("txn-abort-named")
    journal.claim()
    refused("txn-abort-named")
    assert journal_status() == "pending_commit"
    journal.write(Settled(**journal.header(), attempt=Attempt(3), publication=JournalNumber(2)))
    assert journal_status() == "unreferenced"
    done = txn("abort", name, "--yes", *storage, "--json", kafka=bootstrap)
    assert (done.code, done.json["outcome"]) == (0, "aborted")
    del producer


@pytest.mark.slow
def test_txn_abort_with_accept_data_loss_aborts_the_transaction_of_a_job(
    any_kafka: EmbeddedKafka, txn: Txn
) -> None:
    bootstrap = any_kafka.bootstrap
    topic = unique("totals")
    create_topic(bootstrap, topic, partitions=1)
    name = f"tidegate.{unique('job')}.j1.totals.1.0.0"
    producer = opened(bootstrap, name, topic)
    done = txn("abort", name, "--yes", "--accept-data-loss", "--json", kafka=bootstrap)
    assert (done.code, done.json["outcome"]) == (0, "aborted")
    del producer


def test_txn_abort_refuses_transactions_of_a_running_job(
    kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config={"checkpoint.interval": "2min"}) as live:

        def published() -> bool:
            return any(entry["kind"] == "publication" for entry in folder.journal())

        live.until(published, "through with its first checkpoint, which comes soon", 60)
        folder.orders(30)  # from here on a transaction is open

        def listed() -> list[dict[str, Any]]:
            answer = txn("list", "--job", folder.job, "--json", kafka=kafka.bootstrap)
            found: list[dict[str, Any]] = answer.json["transactions"]
            return found

        (row, *_) = live.until(listed, "writing into a transaction", 60)
        assert row["job"]["name"] == folder.job
        assert (row["job"]["sink"], row["job"]["attempt"]) == ("totals", 1)
        name = row["transactional_id"]
        refused = txn("abort", name, "--yes", kafka=kafka.bootstrap)
        assert refused.code == 2
        assert "newest attempt" in refused.err
        stuck = txn("why-stuck", folder.topics["totals"], kafka=kafka.bootstrap)
        assert f"nothing while job {folder.job} runs" in stuck.out
        assert live.stop().code == 0
    folder.assert_exact(30)
