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

from tests.controlplane.client.test_client_transactions import (
    HERE,
    THERE,
    StillClock,
    Tables,
    producer,
    transaction,
)
from tidegate.cli import txn_session
from tidegate.cli.txn import app
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


def test_an_id_that_no_coordinator_knows_is_refused(txn: Txn) -> None:
    for command in ("show", "abort"):
        with pytest.raises(RefusedError, match="No coordinator knows the transactional id 'x'"):
            txn(Tables({}, described=[None]), command, "x")


def test_what_is_not_open_is_not_aborted(txn: Txn) -> None:
    tables = Tables({}, described=[transaction(7, state=DONE)])
    with pytest.raises(RefusedError, match="app-7 has nothing open, it is CompleteAbort"):
        txn(tables, "abort", "app-7", "--yes")
    assert "abort" not in tables.asked


def test_what_a_journal_may_have_promised_is_aborted_with_the_stronger_flag_only(txn: Txn) -> None:
    tables = Tables({}, described=[transaction(7, transactional_id=OURS, partitions=())])
    with pytest.raises(
        RefusedError, match=f"(?s){OURS} belongs to job order-totals.*--accept-data-loss"
    ):
        txn(tables, "abort", OURS, "--yes")
    assert "abort" not in tables.asked
    txn(tables, "abort", OURS, "--yes", "--accept-data-loss")
    assert "abort" in tables.asked


def test_nothing_is_aborted_unless_somebody_says_so(
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


def test_an_abort_that_is_not_done_in_time_is_no_success(txn: Txn) -> None:
    open_, aborting = transaction(7), transaction(7, state=TransactionState.PREPARE_ABORT, epoch=1)
    assert txn(Tables({}, described=[open_, aborting]), "abort", "app-7", "--yes") == 1
    done = transaction(7, state=DONE, epoch=1)
    assert txn(Tables({}, described=[open_, done]), "abort", "app-7", "--yes") == 0


def test_a_marker_that_did_not_help_is_a_failure(txn: Txn) -> None:
    tables = Tables({HERE: [producer(7, 0)]})
    with pytest.raises(KafkaError, match="took the abort marker, and the transaction at offset 0"):
        txn(tables, *MARKER, "--yes")


def test_what_may_be_a_part_of_something_committed_is_not_torn_off(txn: Txn) -> None:
    gone_on = transaction(7, state=TransactionState.COMPLETE_COMMIT, partitions=())
    tables = Tables({HERE: [producer(7, 0)]}, known=[gone_on])
    with pytest.raises(RefusedError, match=r"the last transaction of app-7, .* was committed"):
        txn(tables, *MARKER, "--yes")
    assert not [each for each in tables.asked if each.startswith("marker")]


@pytest.mark.parametrize(
    "words", [(), ("app-7", "--topic", "orders"), MARKER[1:3], (*MARKER[1:5], "--yes")]
)
def test_what_to_abort_is_said_in_one_way(txn: Txn, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="Give either a transactional id, or --topic, --part"):
        txn(Tables({}, described=[None]), "abort", *words)


def test_a_broker_that_is_not_there_is_refused_with_those_that_are(txn: Txn) -> None:
    for hanging in ([], ["--hanging"]):
        with pytest.raises(RefusedError, match="No broker 4 is up in this cluster; those are: 1"):
            txn(Tables({HERE: []}), "list", "--broker", "4", *hanging)


def test_a_missing_right_is_the_users_matter(txn: Txn) -> None:
    class Denied(Tables):
        def describe(self, transactional_id: TransactionalId) -> Any:
            message = "Kafka does not let us."
            raise KafkaNotAuthorisedError(message)

    with pytest.raises(NotAllowedError, match="Kafka does not let us"):
        txn(Denied({}), "show", "x")


def test_who_did_not_answer_makes_the_exit_code(txn: Txn) -> None:
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
