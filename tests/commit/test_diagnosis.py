"""What transactions mean, as tables: which hang, which are only late, which may be aborted.

Method: one fact is changed at a time against a healthy open transaction.
"""

from __future__ import annotations

import msgspec
import pytest

from tidegate.commit.diagnosis import (
    ENDING,
    MAX_TIMEOUT_MS,
    OPEN,
    TIMEOUT_SCAN_MS,
    AbortOutcome,
    JournalStatus,
    OpenReason,
    PartitionStatus,
    abort_outcome,
    classify,
    journal_status,
    select_transactions,
)
from tidegate.commit.journal.entries import Closed, Publication
from tidegate.commit.journal.state import JournalState
from tidegate.ids import Attempt, CheckpointId, JournalNumber, TransactionalId
from tidegate.ports.inspection import PartitionEndOffsets, ProducerState, Transaction
from tidegate.ports.kafka import TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import TopicPartition

NOW = 10_000_000_000
LATE = MAX_TIMEOUT_MS + 1
ABORTING = TransactionState.PREPARE_ABORT
HERE, THERE = TopicPartition("orders", 0), TopicPartition("orders", 1)
PRODUCER = ProducerState(
    producer_id=7, epoch=2, coordinator_epoch=-1, last_ms=NOW - 500, start_offset=12
)
OPENED = Transaction(
    transactional_id=TransactionalId("order-service"),
    coordinator=1,
    state=TransactionState.ONGOING,
    producer_id=7,
    epoch=2,
    start_ms=NOW - 1_000,
    timeout_ms=60_000,
    partitions=(HERE,),
)


def changed(**fields: object) -> Transaction:
    return msgspec.structs.replace(OPENED, **fields)


def old(age_ms: int) -> ProducerState:
    return msgspec.structs.replace(PRODUCER, last_ms=NOW - age_ms)


@pytest.mark.parametrize(
    ("producer", "known", "complete", "cause", "age_ms"),
    [
        (PRODUCER, OPENED, True, OpenReason.OPEN, 1_000),
        # Its coordinator knows it: then it hangs at no age.
        (old(LATE), OPENED, True, OpenReason.OPEN, 1_000),
        (PRODUCER, OPENED, False, OpenReason.OPEN, 1_000),
        # A coordinator raises the epoch before it writes the marker.
        (PRODUCER, changed(state=ABORTING, epoch=3), True, OpenReason.ENDING, 1_000),
        (PRODUCER, changed(state=TransactionState.PREPARE_COMMIT), True, OpenReason.ENDING, 1_000),
        (
            PRODUCER,
            changed(start_ms=NOW - 60_000 - TIMEOUT_SCAN_MS),
            True,
            OpenReason.OPEN,
            60_000 + TIMEOUT_SCAN_MS,
        ),
        (
            PRODUCER,
            changed(start_ms=NOW - 60_001 - TIMEOUT_SCAN_MS),
            True,
            OpenReason.OVERDUE,
            60_001 + TIMEOUT_SCAN_MS,
        ),
        # No producer owns it: the age of its last record decides.
        (old(MAX_TIMEOUT_MS), None, True, OpenReason.POSSIBLY_HANGING, MAX_TIMEOUT_MS),
        (old(LATE), None, True, OpenReason.HANGING, LATE),
        (old(LATE), None, False, OpenReason.UNKNOWN, LATE),
        # Its producer's, but its coordinator ends it elsewhere only; that one has answered.
        (old(LATE), changed(partitions=(THERE,)), True, OpenReason.HANGING, LATE),
        (old(LATE), changed(partitions=(THERE,)), False, OpenReason.HANGING, LATE),
        (PRODUCER, changed(partitions=()), True, OpenReason.POSSIBLY_HANGING, 500),
        # Another machine's clock may be ahead of our clock.
        (old(-5_000), None, True, OpenReason.POSSIBLY_HANGING, 0),
    ],
)  # fmt: skip
def test_open_transaction_is_classified_with_its_cause_and_age(
    producer: ProducerState,
    known: Transaction | None,
    complete: bool,
    cause: OpenReason,
    age_ms: int,
) -> None:
    by_producer = {} if known is None else {known.producer_id: known}
    found = classify(HERE, producer, by_producer, complete=complete, now_ms=NOW)
    assert (found.cause, found.age_ms, found.transaction) == (cause, age_ms, known)


def test_transaction_of_another_producer_id_does_not_explain_an_open_one() -> None:
    another = changed(producer_id=8)
    found = classify(HERE, PRODUCER, {8: another}, complete=True, now_ms=NOW)
    assert (found.cause, found.transaction) == (OpenReason.POSSIBLY_HANGING, None)


def test_number_of_waiting_records_is_never_negative() -> None:
    for end_offsets, waiting in (
        (None, 0),
        (PartitionEndOffsets(stable=3, end=10), 7),
        (PartitionEndOffsets(stable=10, end=9), 0),
    ):
        assert (
            PartitionStatus(
                topic_partition=HERE, leader=1, end_offsets=end_offsets, open_transactions=()
            ).waiting
            == waiting
        )


OURS = TransactionalId("tidegate.totals.j1.out.3.0.0")
CLAIM_ID = TransactionalId("tidegate.totals.j1._claims")


def journal(**fields: object) -> JournalState:
    state = JournalState(number=JournalNumber(9), journal_id="j1", attempt=Attempt(3))
    return msgspec.structs.replace(state, **fields)


def publication(name: str) -> Publication:
    named = PreparedTransaction(
        cluster_id="c", transactional_id=TransactionalId(name), producer_id=1, epoch=0, start_ms=5
    )
    return Publication(
        number=JournalNumber(8),
        nonce="n",
        previous="m",
        journal_id="j1",
        created_ms=0,
        attempt=Attempt(3),
        checkpoint=CheckpointId(Attempt(3), 1),
        submission_id="s",
        manifest="m",
        sha256="x",
        final=False,
        transactions=(named,),
    )


CLOSED = Closed(
    number=JournalNumber(9),
    nonce="n",
    previous="m",
    journal_id="j1",
    created_ms=0,
    attempt=Attempt(3),
    outcome="finished",
)


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("order-service", None, JournalStatus.NOT_TIDEGATE),
        ("tidegate.totals", journal(), JournalStatus.NOT_TIDEGATE),
        (CLAIM_ID, journal(), JournalStatus.UNREFERENCED),
        (OURS, None, JournalStatus.UNKNOWN),
        (OURS, JournalState(), JournalStatus.UNKNOWN),
        (OURS, journal(journal_id="j2"), JournalStatus.UNKNOWN),
        # A journal that knows less than the id was restored from a copy.
        (OURS, journal(attempt=Attempt(2)), JournalStatus.UNKNOWN),
        (OURS, journal(), JournalStatus.CURRENT_ATTEMPT),
        (OURS, journal(closed=CLOSED), JournalStatus.UNREFERENCED),
        (OURS, journal(attempt=Attempt(4)), JournalStatus.UNREFERENCED),
        (OURS, journal(publication=publication(OURS)), JournalStatus.PENDING_COMMIT),
        (
            OURS,
            journal(publication=publication(OURS), attempt=Attempt(4)),
            JournalStatus.PENDING_COMMIT,
        ),
        (OURS, journal(publication=publication(OURS), settled=True), JournalStatus.CURRENT_ATTEMPT),
        (
            OURS,
            journal(publication=publication(OURS), settled=True, attempt=Attempt(4)),
            JournalStatus.UNREFERENCED,
        ),
        (
            OURS,
            journal(publication=publication("tidegate.totals.j1.out.3.1.0"), attempt=Attempt(4)),
            JournalStatus.UNREFERENCED,
        ),
    ],
)
def test_transactional_id_gets_its_status_from_the_journal(
    name: str, state: JournalState | None, expected: JournalStatus
) -> None:
    assert journal_status(TransactionalId(name), state) is expected


@pytest.mark.parametrize(
    ("after", "outcome"),
    [
        (changed(state=TransactionState.COMPLETE_ABORT, epoch=3), AbortOutcome.ABORTED),
        (changed(state=TransactionState.PREPARE_ABORT, epoch=3), AbortOutcome.ABORTING),
        (changed(state=TransactionState.PREPARE_EPOCH_FENCE, epoch=3), AbortOutcome.ABORTING),
        (changed(state=TransactionState.COMPLETE_COMMIT, epoch=3), AbortOutcome.COMMITTED),
        (changed(state=TransactionState.PREPARE_COMMIT), AbortOutcome.COMMITTED),
        (changed(state=TransactionState.COMPLETE_ABORT, start_ms=NOW), AbortOutcome.CHANGED),
        (changed(state=TransactionState.COMPLETE_ABORT, producer_id=8), AbortOutcome.CHANGED),
        (changed(state=TransactionState.EMPTY, start_ms=-1), AbortOutcome.CHANGED),
        (OPENED, AbortOutcome.CHANGED),
        (None, AbortOutcome.CHANGED),
    ],
)
def test_abort_outcome_is_derived_from_the_transaction_seen_afterwards(
    after: Transaction | None, outcome: AbortOutcome
) -> None:
    assert abort_outcome(OPENED, after) is outcome


def test_every_transaction_state_is_either_open_or_over() -> None:
    over = {
        TransactionState.EMPTY,
        TransactionState.COMPLETE_COMMIT,
        TransactionState.COMPLETE_ABORT,
        TransactionState.DEAD,
    }
    assert set(TransactionState) == OPEN | over
    assert not OPEN & over
    assert OPEN > ENDING


def test_transactions_are_selected_by_job_partition_and_age_oldest_first() -> None:
    ours = changed(transactional_id=OURS, start_ms=NOW - 90_000, partitions=(THERE,))
    never = changed(transactional_id=TransactionalId("a"), start_ms=-1, partitions=())
    claims = changed(transactional_id=CLAIM_ID, start_ms=-1, partitions=())
    rows = [never, OPENED, claims, ours]

    def chosen(
        job: str | None = None,
        topic_partitions: set[TopicPartition] | None = None,
        older_than_ms: int = 0,
    ) -> list[Transaction]:
        return select_transactions(
            rows,
            job=job,
            topic_partitions=topic_partitions,
            older_than_ms=older_than_ms,
            now_ms=NOW,
        )

    assert chosen() == [ours, OPENED, never, claims]
    assert chosen(job="totals") == [ours, claims]
    assert chosen(job="total") == []
    assert chosen(topic_partitions={HERE}) == [OPENED]
    assert chosen(topic_partitions=set()) == []
    assert chosen(older_than_ms=1_000) == [ours, OPENED]
    assert chosen(older_than_ms=1_001) == [ours]
