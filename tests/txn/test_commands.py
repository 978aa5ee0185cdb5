"""`tidegate txn` as commands: what is refused, with which text, and with which exit code.

Method: the real commands use an inspector that answers from tables, and a clock that advances only
during a sleep.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tests.txn.test_transactions import (
    HERE,
    THERE,
    StillClock,
    Tables,
    producer,
    transaction,
)
from tidegate.errors import (
    ConfigError,
    KafkaError,
    KafkaNotAuthorisedError,
    NotAllowedError,
    RefusedError,
)
from tidegate.ids import TransactionalId
from tidegate.ports.inspection import ClusterTransactions, PartitionEndOffsets, ProducerState
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition
from tidegate.txn import session as txn_session
from tidegate.txn.command import app

DONE = TransactionState.COMPLETE_ABORT
OURS = TransactionalId("tidegate.order-totals.j1.totals.3.0.1")
MARKER = ("abort", "--topic", "orders", "--partition", "0", "--start-offset", "0")


class Txn:
    """The command; an error of tidegate is raised as `main` would get it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        monkeypatch.setattr(txn_session, "SystemClock", StillClock)

    def __call__(self, tables: object, *words: str) -> int:
        self._monkeypatch.setattr(txn_session, "KafkaTransactionInspector", lambda _: tables)
        result = CliRunner().invoke(app, list(words))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code


@pytest.fixture
def txn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Txn:
    monkeypatch.chdir(tmp_path)
    return Txn(monkeypatch)


def test_transactional_id_that_no_coordinator_knows_is_refused(txn: Txn) -> None:
    for command in ("show", "abort"):
        with pytest.raises(RefusedError, match="No coordinator knows the transactional id 'x'"):
            txn(Tables({}, described=[None]), command, "x")


def test_abort_of_a_transaction_that_is_not_open_is_refused(txn: Txn) -> None:
    tables = Tables({}, described=[transaction(7, state=DONE)])
    with pytest.raises(RefusedError, match="app-7 has nothing open, it is CompleteAbort"):
        txn(tables, "abort", "app-7", "--yes")
    assert "abort" not in tables.asked


def test_abort_of_a_transaction_of_a_job_needs_accept_data_loss(txn: Txn) -> None:
    tables = Tables({}, described=[transaction(7, transactional_id=OURS, partitions=())])
    with pytest.raises(
        RefusedError, match=f"(?s){OURS} belongs to job order-totals.*--accept-data-loss"
    ):
        txn(tables, "abort", OURS, "--yes")
    assert "abort" not in tables.asked
    txn(tables, "abort", OURS, "--yes", "--accept-data-loss")
    assert "abort" in tables.asked


def test_abort_is_refused_without_yes_or_a_confirmation(
    txn: Txn, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = Tables({HERE: [producer(7, 0)]}, described=[transaction(7)])
    for words in (("abort", "app-7"), MARKER):
        with pytest.raises(RefusedError, match=r"no terminal to ask .*\. Use --yes in scripts"):
            txn(tables, *words)
    asked: list[str] = []

    def no(question: str, *, err: bool) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr(typer, "confirm", no)
    monkeypatch.setattr(sys, "stdin", Terminal())
    with pytest.raises(RefusedError, match=r"^Nothing was aborted\.$"):
        txn_session._confirm("Abort it?", yes=False)
    assert asked == ["Abort it?"]
    assert "abort" not in tables.asked
    assert not [each for each in tables.asked if each.startswith("marker")]


class Terminal:
    def isatty(self) -> bool:
        return True


def test_abort_that_is_not_complete_in_time_has_exit_code_1(txn: Txn) -> None:
    open_, aborting = transaction(7), transaction(7, state=TransactionState.PREPARE_ABORT, epoch=1)
    assert txn(Tables({}, described=[open_, aborting]), "abort", "app-7", "--yes") == 1
    done = transaction(7, state=DONE, epoch=1)
    assert txn(Tables({}, described=[open_, done]), "abort", "app-7", "--yes") == 0


def test_abort_marker_that_leaves_the_transaction_open_is_an_error(txn: Txn) -> None:
    tables = Tables({HERE: [producer(7, 0)]})
    with pytest.raises(KafkaError, match="took the abort marker, and the transaction at offset 0"):
        txn(tables, *MARKER, "--yes")


def test_abort_marker_for_a_possibly_committed_transaction_is_refused(txn: Txn) -> None:
    gone_on = transaction(7, state=TransactionState.COMPLETE_COMMIT, partitions=())
    tables = Tables({HERE: [producer(7, 0)]}, known=[gone_on])
    with pytest.raises(RefusedError, match=r"the last transaction of app-7, .* was committed"):
        txn(tables, *MARKER, "--yes")
    assert not [each for each in tables.asked if each.startswith("marker")]


@pytest.mark.parametrize(
    "words", [(), ("app-7", "--topic", "orders"), MARKER[1:3], (*MARKER[1:5], "--yes")]
)
def test_abort_needs_either_a_transactional_id_or_all_options_of_a_marker(
    txn: Txn, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError, match="Give either a transactional id, or --topic, --part"):
        txn(Tables({}, described=[None]), "abort", *words)


def test_unknown_broker_is_refused_and_the_error_lists_the_live_brokers(txn: Txn) -> None:
    for hanging in ([], ["--hanging"]):
        with pytest.raises(RefusedError, match="No broker 4 is up in this cluster; those are: 1"):
            txn(Tables({HERE: []}), "list", "--broker", "4", *hanging)


def test_missing_right_in_kafka_raises_not_allowed_error(txn: Txn) -> None:
    class Denied(Tables):
        def describe(self, transactional_id: TransactionalId) -> Any:
            message = "Kafka does not let us."
            raise KafkaNotAuthorisedError(message)

    with pytest.raises(NotAllowedError, match="Kafka does not let us"):
        txn(Denied({}), "show", "x")


def test_broker_or_partition_that_does_not_answer_gives_exit_code_1(txn: Txn) -> None:
    class Silent(Tables):
        def find_transactions(self, **_: Any) -> ClusterTransactions:
            return ClusterTransactions(transactions=(), unreachable=self.silent)

    end_offsets = {
        HERE: PartitionEndOffsets(stable=3, end=3),
        THERE: PartitionEndOffsets(stable=3, end=3),
    }
    for silent, code in (((), 0), (("broker 2",), 1)):
        assert txn(Silent({}, unreachable=silent), "list") == code
        look: dict[TopicPartition, list[ProducerState]] = {HERE: []}
        if not silent:
            look[THERE] = []
        assert txn(Silent(look, end_offsets=end_offsets), "list", "--hanging") == code
        assert txn(Silent(look, end_offsets=end_offsets), "why-stuck", "orders") == code
