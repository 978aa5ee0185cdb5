"""The texts of `tidegate txn`: they describe the findings, and say what to do about them.

All functions are pure: facts in, text out. `output.py` makes the tables and the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidegate.commit.diagnosis import (
    ENDING,
    MAX_TIMEOUT_MS,
    AbortOutcome,
    JournalStatus,
    OpenReason,
    OpenTransaction,
    PartitionStatus,
)
from tidegate.commit.transactional_ids import parse_claim_id, parse_transactional_id
from tidegate.ids import TransactionalId
from tidegate.message_text import counted, utc_text
from tidegate.ports.inspection import Transaction
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

PARTITIONS_SHOWN: Final = 3
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def age(milliseconds: int) -> str:
    """Return a duration in its two largest units: `2 min 5 s`."""
    left = max(0, milliseconds) // 1000
    parts = []
    for name, seconds in _UNITS:
        count, left = divmod(left, seconds)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def at(epoch_ms: int) -> str:
    """Return a time as text, in UTC; `-` for a negative one, which means that it is not known."""
    return "-" if epoch_ms < 0 else utc_text(epoch_ms)


def owner(transactional_id: TransactionalId) -> str:
    """Return the tidegate job of an id, with sink, attempt and subtask; `-` for an id of another
    application.
    """
    claims = parse_claim_id(transactional_id)
    if claims is not None:
        return f"{claims[0]} (claims)"
    parts = parse_transactional_id(transactional_id)
    if parts is None:
        return "-"
    return f"{parts.job} (sink {parts.sink}, attempt {parts.attempt}, subtask {parts.subtask})"


def list_partitions(topic_partitions: Sequence[TopicPartition]) -> str:
    """Return a list of partitions as text, with only the first few by name."""
    shown = ", ".join(
        f"{each.topic}-{each.partition}" for each in topic_partitions[:PARTITIONS_SHOWN]
    )
    more = len(topic_partitions) - PARTITIONS_SHOWN
    return (f"{shown} and {more} more" if more > 0 else shown) or "-"


def describe_partition(found: PartitionStatus) -> list[str]:
    """Return lines about a partition: what is held back, by what, since when, and what to do."""
    where = f"{found.topic_partition.topic}-{found.topic_partition.partition}"
    if found.end_offsets is None:
        leader = "it has no leader"
        if found.leader >= 0:
            leader = f"its leader, broker {found.leader}, did not answer"
        return [f"{where}: not asked, {leader}. What to do: bring it back, then ask again."]
    if not found.open_transactions:
        if not found.waiting:
            end = found.end_offsets.end
            return [f"{where}: not held back, readers see all of it up to offset {end}."]
        return [
            (
                f"{where}: {counted(found.waiting, 'offset')} not readable yet, but no transaction "
                "is open: the one that was has just ended. Ask again."
            )
        ]
    first = found.open_transactions[0]
    behind = len(found.open_transactions) - 1
    also = f" {counted(behind, 'more transaction')} open behind it." if behind else ""
    return [
        (
            f"{where}: readers wait at offset {first.producer.start_offset}; "
            f"{counted(found.waiting, 'offset')} from there on (records and markers) cannot be "
            "read."
        ),
        f"  {_holder(first)}{also}",
        f"  What to do: {advice(first)}",
    ]


def advice(open_transaction: OpenTransaction) -> str:
    """Return what to do about a transaction that holds readers back."""
    if open_transaction.transaction is None or open_transaction.cause in {
        OpenReason.HANGING,
        OpenReason.POSSIBLY_HANGING,
    }:
        return _advice_without_coordinator(open_transaction)
    transaction = open_transaction.transaction
    name = transaction.transactional_id
    if open_transaction.cause is OpenReason.ENDING:
        decided = "commit" if transaction.state is TransactionState.PREPARE_COMMIT else "abort"
        return (
            f"nothing can change its end any more ({decided} is decided). Broker "
            f"{transaction.coordinator} has yet to write it into "
            f"{list_partitions(transaction.partitions)}: it does as soon as their leaders answer, "
            "so check that those brokers run."
        )
    if open_transaction.cause is OpenReason.OVERDUE:
        return (
            f"broker {transaction.coordinator} should have aborted it "
            f"{age(open_transaction.age_ms - transaction.timeout_ms)} ago; its log may say why it "
            f"did not. Then: tidegate txn abort {name}"
        )
    left = age(transaction.timeout_ms - open_transaction.age_ms)
    parts = parse_transactional_id(name)
    if parts is not None:
        return (
            f"nothing while job {parts.job} runs: its checkpoints end it. If the job is down, run "
            f"it again: it commits what was promised and aborts the rest. After {left} the broker "
            "aborts it, and what was promised is lost."
        )
    return (
        f"wait for its producer, or {left} for its timeout. If the producer is gone: "
        f"tidegate txn abort {name}"
    )


def perhaps_committed(open_transaction: OpenTransaction) -> str:
    """Return why a hanging transaction that may be committed needs `--accept-data-loss` to be
    aborted.
    """
    name = (
        ""
        if open_transaction.transaction is None
        else open_transaction.transaction.transactional_id
    )
    return (
        f"Nothing was aborted: the last transaction of {name}, the producer's id, was committed, "
        f"and this may be a part of it. What to do: {advice(open_transaction)}"
    )


def nothing_to_abort(transaction: Transaction) -> str:
    """Return why a transaction that is not ongoing cannot be aborted."""
    name, state = transaction.transactional_id, transaction.state.value
    if transaction.state in ENDING:
        return (
            f"Nothing was aborted: the end of {name} is decided already ({state}), its markers are "
            f"still to be written into {list_partitions(transaction.partitions)}. They are as soon "
            "as the leaders of these partitions answer."
        )
    return f"Nothing was aborted: {name} has nothing open, it is {state}."


def abort_refusal(journal_status: JournalStatus, transaction: Transaction) -> str | None:
    """Return why the abort of an id needs `--accept-data-loss`; None if it does not."""
    name = transaction.transactional_id
    parts = parse_transactional_id(name)
    job = "" if parts is None else parts.job
    match journal_status:
        case JournalStatus.NOT_TIDEGATE | JournalStatus.UNREFERENCED:
            return None
        case JournalStatus.PENDING_COMMIT:
            why = (
                f"the journal of job {job} lists {name} in its last checkpoint: its records are "
                "promised, and the job has continued behind them. Aborted, they are lost. Run the "
                "job: it commits the transaction first of all."
            )
        case JournalStatus.CURRENT_ATTEMPT:
            why = (
                f"{name} is of the newest attempt of job {job}, whose next checkpoint may promise "
                "its records at any time. Stop the job, or run it again if it is down: both end "
                "the transaction the right way."
            )
        case JournalStatus.UNKNOWN:
            why = (
                f"{name} belongs to job {job}, and the journal that could say whether its records "
                "are promised was not found. Name the job's checkpoint storage with --storage."
            )
    return f"Nothing was aborted: {why} To abort it all the same: --accept-data-loss."


def journal(journal_status: JournalStatus) -> str:
    """Return what the job's journal says about an id, as a line of `show`."""
    match journal_status:
        case JournalStatus.NOT_TIDEGATE:
            return "no id of tidegate"
        case JournalStatus.UNKNOWN:
            return "not found; --storage names the job's checkpoint storage"
        case JournalStatus.PENDING_COMMIT:
            return "LISTED by the last publication, which is not settled: aborting it loses data"
        case JournalStatus.CURRENT_ATTEMPT:
            return "not listed yet; of the newest attempt, whose next publication may list it"
        case JournalStatus.UNREFERENCED:
            return "not listed, and it will not be"


def outcome(ended: AbortOutcome, before: Transaction, after: Transaction | None) -> str:
    """Return what an abort has done."""
    name = before.transactional_id
    match ended:
        case AbortOutcome.ABORTED:
            return f"{name}: aborted; its producer {before.producer_id} is locked out."
        case AbortOutcome.ABORTING:
            left = () if after is None else after.partitions
            return (
                f"{name}: the abort is decided, but its marker is still missing in "
                f"{list_partitions(left)}. It is written as soon as the leaders of these "
                "partitions answer."
            )
        case AbortOutcome.COMMITTED:
            return f"{name}: not aborted, its producer had committed it."
        case AbortOutcome.CHANGED:
            now = "unknown to its coordinator" if after is None else f"{after.state.value} now"
            return (
                f"{name}: the transaction that you saw has ended meanwhile, the id is {now}. "
                "Nothing else was touched."
            )


def _holder(open_transaction: OpenTransaction) -> str:
    producer = open_transaction.producer
    who = f"producer {producer.producer_id}, epoch {producer.epoch}"
    if open_transaction.transaction is None or open_transaction.cause in {
        OpenReason.HANGING,
        OpenReason.POSSIBLY_HANGING,
    }:
        nobody = "no coordinator lists it"
        if open_transaction.cause is OpenReason.UNKNOWN:
            nobody = "no coordinator that answered lists it"
        elif open_transaction.transaction is not None:
            nobody = (
                f"its id {open_transaction.transaction.transactional_id} has continued without it"
            )
        last = f"last record {age(open_transaction.age_ms)} ago, {at(producer.last_ms)}"
        return f"An open transaction of {who}; {last}; {nobody}."
    transaction = open_transaction.transaction
    job = owner(transaction.transactional_id)
    whose = "" if job == "-" else f", job {job}"
    return (
        f"Transaction {transaction.transactional_id}{whose}: {transaction.state.value} for "
        f"{age(open_transaction.age_ms)}, since {at(transaction.start_ms)}; timeout "
        f"{age(transaction.timeout_ms)}; {who}; coordinator: broker {transaction.coordinator}."
    )


def _advice_without_coordinator(open_transaction: OpenTransaction) -> str:
    topic_partition = open_transaction.topic_partition
    if open_transaction.cause is OpenReason.UNKNOWN:
        return (
            "bring back the brokers that did not answer: its coordinator may be one of them. Then "
            "ask again."
        )
    command = (
        f"tidegate txn abort --topic {topic_partition.topic} --partition "
        f"{topic_partition.partition} --start-offset {open_transaction.producer.start_offset}"
    )
    if open_transaction.cause is OpenReason.POSSIBLY_HANGING:
        return (
            f"ask again in some seconds. If it is still there after {age(MAX_TIMEOUT_MS)}, it "
            f"hangs: {command}"
        )
    if open_transaction.committed:
        return (
            "it hangs, and it may be a commit whose marker is missing here (brokers of Kafka 4 "
            "forget it where a partition has no leader, KAFKA-20734): aborting it would lose its "
            "records. Copy them first (read_uncommitted readers see them), then: "
            f"{command} --accept-data-loss"
        )
    return f"it hangs: no coordinator will end it. {command}"
