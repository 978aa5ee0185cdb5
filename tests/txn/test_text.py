"""The words of `tidegate txn`, without a broker: ages, advice for every cause, refusals, tables and
JSON.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest

from tidegate.commit.diagnosis import (
    AbortOutcome,
    JournalStatus,
    OpenReason,
    OpenTransaction,
    PartitionStatus,
)
from tidegate.errors import ConfigError
from tidegate.ids import TransactionalId
from tidegate.ports.inspection import PartitionEndOffsets, ProducerState, Transaction
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition
from tidegate.txn import output
from tidegate.txn import text as words
from tidegate.txn.session import Session, TopicSelector, duration_ms, topic_selector

NOW = 1_795_288_000_000
HERE = TopicPartition("orders", 0)
OURS = TransactionalId("tidegate.order-totals.j1.totals.3.0.1")
PRODUCER = ProducerState(
    producer_id=7, epoch=2, coordinator_epoch=4, last_ms=NOW - 9_000, start_offset=12
)
OPENED = Transaction(
    transactional_id=TransactionalId("order-service"),
    coordinator=1,
    state=TransactionState.ONGOING,
    producer_id=7,
    epoch=2,
    start_ms=NOW - 10_000,
    timeout_ms=60_000,
    partitions=(HERE,),
)
BY_HAND = "tidegate txn abort --topic orders --partition 0 --start-offset 12"


def held(
    cause: OpenReason, transaction: Transaction | None = OPENED, age_ms: int = 10_000
) -> OpenTransaction:
    return OpenTransaction(
        topic_partition=HERE, producer=PRODUCER, transaction=transaction, cause=cause, age_ms=age_ms
    )


def of(state: TransactionState) -> Transaction:
    return msgspec.structs.replace(OPENED, state=state)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-5, "0 s"),
        (999, "0 s"),
        (59_999, "59 s"),
        (60_000, "1 min"),
        (125_000, "2 min 5 s"),
        (3_600_000, "1 h"),
        (3_605_000, "1 h 5 s"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_ages_have_two_units_at_most(milliseconds: int, text: str) -> None:
    assert words.age(milliseconds) == text


def test_owner_of_an_id_is_its_job_or_unknown() -> None:
    for name, owner in (
        ("tidegate.totals.j1.out.3.0.1", "totals (sink out, attempt 3, subtask 0)"),
        ("tidegate.totals.j1._claims", "totals (claims)"),
        ("order-service", "-"),
    ):
        assert words.owner(TransactionalId(name)) == owner


def test_list_of_partitions_shows_three_and_counts_the_rest() -> None:
    topic_partitions = [TopicPartition("t", number) for number in range(5)]
    assert words.list_partitions([]) == "-"
    assert words.list_partitions(topic_partitions[:3]) == "t-0, t-1, t-2"
    assert words.list_partitions(topic_partitions) == "t-0, t-1, t-2 and 2 more"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            held(OpenReason.OPEN),
            ["wait for its producer, or 50 s", "tidegate txn abort order-service"],
        ),
        (
            held(OpenReason.OPEN, msgspec.structs.replace(OPENED, transactional_id=OURS)),
            ["nothing while job order-totals runs", "run it again", "After 50 s"],
        ),
        (
            held(OpenReason.OVERDUE, age_ms=160_000),
            ["broker 1 should have aborted it 1 min 40 s ago", "tidegate txn abort order-service"],
        ),
        (
            held(OpenReason.ENDING, of(TransactionState.PREPARE_COMMIT)),
            ["commit is decided", "Broker 1", "orders-0"],
        ),
        (held(OpenReason.ENDING, of(TransactionState.PREPARE_ABORT)), ["abort is decided"]),
        (held(OpenReason.HANGING, None), ["no coordinator will end it", BY_HAND]),
        (held(OpenReason.HANGING), ["no coordinator will end it", BY_HAND]),
        (held(OpenReason.POSSIBLY_HANGING, None), ["ask again in some seconds", "15 min", BY_HAND]),
        (held(OpenReason.UNKNOWN, None), ["bring back the brokers"]),
    ],
)
def test_advice_exists_for_every_cause_of_an_open_transaction(
    found: OpenTransaction, said: list[str]
) -> None:
    told = words.advice(found)
    for each in said:
        assert each in told


def test_advice_for_a_possibly_committed_transaction_is_to_copy_its_records_first() -> None:
    committed = held(OpenReason.HANGING, of(TransactionState.COMPLETE_COMMIT))
    assert committed.committed
    assert "Copy them first" in words.advice(committed)
    assert f"{BY_HAND} --accept-data-loss" in words.perhaps_committed(committed)
    for state in set(TransactionState) - {TransactionState.COMPLETE_COMMIT}:
        assert not held(OpenReason.HANGING, of(state)).committed
    assert not held(OpenReason.HANGING, None).committed


def test_advice_never_suggests_an_abort_that_could_lose_data() -> None:
    assert "abort" not in words.advice(held(OpenReason.ENDING, of(TransactionState.PREPARE_COMMIT)))
    ours = msgspec.structs.replace(OPENED, transactional_id=OURS)
    assert "txn abort" not in words.advice(held(OpenReason.OPEN, ours))
    assert "txn abort" not in words.advice(held(OpenReason.UNKNOWN, None))


def describe_partition(
    end_offsets: PartitionEndOffsets | None, *row: OpenTransaction, leader: int = 1
) -> str:
    return "\n".join(
        words.describe_partition(
            PartitionStatus(
                topic_partition=HERE, leader=leader, end_offsets=end_offsets, open_transactions=row
            )
        )
    )


def test_state_of_a_stuck_partition_is_described_in_sentences() -> None:
    text = describe_partition(
        PartitionEndOffsets(stable=12, end=40),
        held(OpenReason.OPEN),
        held(OpenReason.HANGING, None),
    )
    assert "orders-0: readers wait at offset 12; 28 offsets" in text
    assert "Transaction order-service: Ongoing for 10 s" in text
    assert "1 more transaction open behind it" in text
    assert "not held back" in describe_partition(PartitionEndOffsets(stable=40, end=40))
    assert "has just ended" in describe_partition(PartitionEndOffsets(stable=39, end=40))
    assert "1 offset not readable" in describe_partition(PartitionEndOffsets(stable=39, end=40))
    assert "it has no leader" in describe_partition(None, leader=-1)
    assert "broker 1, did not answer" in describe_partition(None)
    text = describe_partition(PartitionEndOffsets(stable=12, end=40), held(OpenReason.HANGING))
    assert "its id order-service has continued without it" in text
    text = describe_partition(
        PartitionEndOffsets(stable=12, end=40), held(OpenReason.UNKNOWN, None)
    )
    assert "no coordinator that answered" in text


@pytest.mark.parametrize("journal_status", list(JournalStatus))
def test_only_foreign_or_unreferenced_transactions_abort_without_accept_data_loss(
    journal_status: JournalStatus,
) -> None:
    ours = msgspec.structs.replace(OPENED, transactional_id=OURS)
    refusal = words.abort_refusal(journal_status, ours)
    assert (refusal is None) == (
        journal_status in {JournalStatus.NOT_TIDEGATE, JournalStatus.UNREFERENCED}
    )
    if refusal is not None:
        assert "order-totals" in refusal
        assert "--accept-data-loss" in refusal
    assert words.journal(journal_status)


@pytest.mark.parametrize("outcome", list(AbortOutcome))
def test_every_outcome_of_an_abort_has_a_text(outcome: AbortOutcome) -> None:
    text = words.outcome(outcome, OPENED, OPENED)
    assert text.startswith("order-service: ")
    assert words.outcome(outcome, OPENED, None) != ""


def test_table_has_tab_separated_lines_if_stdout_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    late = msgspec.structs.replace(OPENED, start_ms=NOW - 61_000, transactional_id=OURS)
    over = msgspec.structs.replace(OPENED, state=TransactionState.COMPLETE_ABORT, partitions=())
    never = msgspec.structs.replace(over, state=TransactionState.EMPTY, start_ms=-1)
    rows = [output.row(each, NOW) for each in (OPENED, late, over, never)]
    output.print_table(output.COLUMNS, rows)
    head, *lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert tuple(head) == output.COLUMNS
    assert [line[2] for line in lines] == ["10 s", "1 min 1 s (overdue)", "-", "-"]
    assert lines[0][4:] == ["2026-11-21 19:06:30 UTC", "broker 1", "7/2", "-", "orders-0"]
    assert lines[1][7] == "order-totals (sink totals, attempt 3, subtask 0)"
    assert lines[3][4] == "-"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_table_in_a_terminal_has_no_tabs_and_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("COLUMNS", "200")
    name = TransactionalId("orders[bold]")
    odd = msgspec.structs.replace(OPENED, transactional_id=name)
    output.print_table(output.COLUMNS, [output.row(odd, NOW)])
    text = screen.getvalue()
    assert "\t" not in text
    assert "TRANSACTIONAL ID" in text
    assert "orders[bold]" in text, "an id is no mark-up"


def test_progress_is_shown_only_in_a_terminal_and_is_erased_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output.progress()("coordinators", 1, 3)
    assert capsys.readouterr().err == ""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    show = output.progress()
    show("coordinators", 0, 1)
    assert screen.getvalue() == ""
    for done in range(4):
        show("coordinators", done, 3)
    assert "asking coordinators: 2 of 3" in screen.getvalue()
    assert screen.getvalue().endswith(" \r")


def test_every_key_and_value_of_the_json_output_is_documented() -> None:
    guides = Path(__file__).parents[2] / "docs" / "guides"
    page = (guides / "transactions.md").read_text(encoding="utf-8")
    ours = msgspec.structs.replace(OPENED, transactional_id=OURS)
    row = PartitionStatus(
        topic_partition=HERE,
        leader=1,
        end_offsets=PartitionEndOffsets(stable=12, end=40),
        open_transactions=(held(OpenReason.OPEN, ours),),
    )
    body = json.loads(json.dumps(output.partition_json(row, NOW)))

    def keys(value: object) -> set[str]:
        if isinstance(value, dict):
            return set(value).union(*(keys(each) for each in value.values()))
        return set().union(*(keys(each) for each in value)) if isinstance(value, list) else set()

    for key in keys(body):
        assert f"`{key}`" in page, key
    for cause in OpenReason:
        assert f"`{cause.value}`" in page
    for journal_status in JournalStatus:
        assert f"`{journal_status.value}`" in page
    for outcome in AbortOutcome:
        assert f"`{outcome.value}`" in page


def test_json_of_a_transaction_has_its_times_and_its_job() -> None:
    body = output.as_json(msgspec.structs.replace(OPENED, transactional_id=OURS), NOW)
    assert (body["age_ms"], body["start_ms"], body["timeout_ms"]) == (10_000, NOW - 10_000, 60_000)
    assert body["job"] == {
        "name": "order-totals",
        "journal": "j1",
        "sink": "totals",
        "attempt": 3,
        "subtask": 0,
        "index": 1,
    }
    never = msgspec.structs.replace(OPENED, state=TransactionState.EMPTY, start_ms=-1)
    assert (output.as_json(never, NOW)["start_ms"], output.as_json(never, NOW)["age_ms"]) == (
        None,
        None,
    )


def test_details_show_the_offsets_of_a_partition_only_if_kafka_was_asked() -> None:
    def last(end_offsets: dict[TopicPartition, PartitionEndOffsets] | None) -> str:
        return output.details(OPENED, {1: "h:9092"}, end_offsets, JournalStatus.NOT_TIDEGATE, NOW)[
            -1
        ]

    assert last(None).endswith("orders-0")
    assert last({}).endswith("orders-0: its leader did not answer")
    told = last({HERE: PartitionEndOffsets(stable=12, end=40)})
    assert told.endswith("orders-0: readable to 12, written to 40, 28 offsets waiting")
    lines = output.details(OPENED, {1: "h:9092"}, None, JournalStatus.NOT_TIDEGATE, NOW)
    assert "coordinator       broker 1 at h:9092" in lines
    assert "open for          10 s" in lines


def test_topic_partitions_and_durations_are_parsed_or_refused_with_an_example() -> None:
    assert topic_selector(None) == TopicSelector(None, None)
    assert topic_selector("orders") == TopicSelector("orders", None)
    assert topic_selector("orders:12") == TopicSelector("orders", 12)
    for wrong in ("", ":1", "orders:", "orders:-1", "orders:x"):
        with pytest.raises(ConfigError, match="Example: orders:3"):
            topic_selector(wrong)
    assert duration_ms("5 min", "--older-than") == 300_000
    with pytest.raises(ConfigError, match="--older-than: '5' is not a duration"):
        duration_ms("5", "--older-than")


def test_search_for_a_journal_creates_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    session = Session("localhost:1", None, str(tmp_path / "elsewhere"))
    journal = session._journal(OURS)
    assert journal is not None
    assert journal.number == 0
    assert list(tmp_path.iterdir()) == []
