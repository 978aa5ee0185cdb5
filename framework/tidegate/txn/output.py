"""The output of `tidegate txn`: tables in a terminal, lines with tabs elsewhere, JSON for scripts.

docs/guides/transactions.md documents the keys of the JSON. They do not change; new keys may be
added.
Times are milliseconds since the epoch; ages and timeouts are milliseconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tidegate.commit.diagnosis import OPEN, JournalStatus, OpenTransaction, PartitionStatus
from tidegate.commit.transactional_ids import parse_transactional_id
from tidegate.message_text import counted
from tidegate.ports.inspection import PartitionEndOffsets, Transaction
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition
from tidegate.txn import text as texts

COLUMNS: Final = (
    "TRANSACTIONAL ID",
    "STATE",
    "AGE",
    "TIMEOUT",
    "SINCE",
    "COORDINATOR",
    "PRODUCER",
    "JOB",
    "PARTITIONS",
)
HANGING_COLUMNS: Final = (
    "PARTITION",
    "START OFFSET",
    "PRODUCER",
    "LAST RECORD",
    "AGE",
    "TRANSACTIONAL ID",
)


def print_json(body: Mapping[str, Any]) -> None:
    """Print one JSON value on stdout."""
    print(json.dumps(body))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in a terminal; elsewhere print lines that cut and awk can read."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            print("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in columns:
        # Users copy ids from the table, so a long id is wrapped and not cut off.
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def print_unreachable(unreachable: Sequence[str]) -> None:
    """Print what is missing in the answer, on stderr."""
    for each in unreachable:
        print(f"tidegate: Not asked: {each}. The answer is incomplete.", file=sys.stderr)


def progress() -> Callable[[str, int, int], None]:
    """Return a function that shows progress in one line that is overwritten.

    It prints nothing if stderr is not a terminal, or if there is only one step.
    """
    if not sys.stderr.isatty():
        return lambda _what, _done, _total: None

    def show(what: str, done: int, total: int) -> None:
        if total > 1:
            text = f"asking {what}: {done} of {total}"
            end = "\r" + " " * len(text) + "\r" if done == total else ""
            print(f"\r{text}{end}", end="", file=sys.stderr, flush=True)

    return show


def row(each: Transaction, now_ms: int) -> list[str]:
    """Return a transaction as a row of the table with `COLUMNS`."""
    running = each.state in OPEN and each.start_ms >= 0
    late = each.state is TransactionState.ONGOING and now_ms - each.start_ms > each.timeout_ms
    return [
        each.transactional_id,
        each.state.value,
        (texts.age(now_ms - each.start_ms) + (" (overdue)" if late else "")) if running else "-",
        texts.age(each.timeout_ms),
        texts.at(each.start_ms),
        f"broker {each.coordinator}",
        f"{each.producer_id}/{each.epoch}",
        texts.owner(each.transactional_id),
        texts.list_partitions(each.partitions),
    ]


def hanging_row(each: OpenTransaction) -> list[str]:
    """Return a hanging transaction as a row of the table with `HANGING_COLUMNS`."""
    return [
        f"{each.topic_partition.topic}-{each.topic_partition.partition}",
        str(each.producer.start_offset),
        f"{each.producer.producer_id}/{each.producer.epoch}",
        texts.at(each.producer.last_ms),
        texts.age(each.age_ms),
        "-" if each.transaction is None else each.transaction.transactional_id,
    ]


def details(
    each: Transaction,
    addresses: Mapping[int, str],
    end_offsets: Mapping[TopicPartition, PartitionEndOffsets] | None,
    journal_status: JournalStatus,
    now_ms: int,
) -> list[str]:
    """Return everything that is known about one transaction, as lines.

    `end_offsets` is None if the partition leaders were not asked.
    """
    address = addresses.get(each.coordinator)
    lines = [
        f"transactional id  {each.transactional_id}",
        f"state             {each.state.value}",
        f"coordinator       broker {each.coordinator}{f' at {address}' if address else ''}",
        f"producer          {each.producer_id}, epoch {each.epoch}",
        f"timeout           {texts.age(each.timeout_ms)}",
        f"began             {texts.at(each.start_ms)}",
    ]
    if each.state in OPEN and each.start_ms >= 0:
        lines.append(f"open for          {texts.age(now_ms - each.start_ms)}")
    lines.append(f"job               {texts.owner(each.transactional_id)}")
    lines.append(f"journal           {texts.journal(journal_status)}")
    for topic_partition in each.partitions:
        where = f"partition         {topic_partition.topic}-{topic_partition.partition}"
        if end_offsets is None:
            lines.append(where)
            continue
        if topic_partition in end_offsets:
            stable, end = end_offsets[topic_partition].stable, end_offsets[topic_partition].end
            waiting = counted(max(0, end - stable), "offset")
            where += f": readable to {stable}, written to {end}, {waiting} waiting"
        else:
            where += ": its leader did not answer"
        lines.append(where)
    return lines


def as_json(each: Transaction, now_ms: int) -> dict[str, Any]:
    """Return a transaction as a JSON object."""
    parts = parse_transactional_id(each.transactional_id)
    job = None
    if parts is not None:
        job = {
            "name": parts.job,
            "journal": parts.journal_id,
            "sink": parts.sink,
            "attempt": parts.attempt,
            "subtask": parts.subtask,
            "index": parts.index,
        }
    began = each.start_ms >= 0
    return {
        "transactional_id": each.transactional_id,
        "state": each.state.value,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "start_ms": each.start_ms if began else None,
        "age_ms": now_ms - each.start_ms if began and each.state in OPEN else None,
        "timeout_ms": each.timeout_ms,
        "partitions": [
            topic_partition_json(topic_partition) for topic_partition in each.partitions
        ],
        "job": job,
    }


def topic_partition_json(topic_partition: TopicPartition) -> dict[str, Any]:
    """Return a partition as a JSON object."""
    return {"topic": topic_partition.topic, "partition": topic_partition.partition}


def open_transaction_json(each: OpenTransaction, now_ms: int) -> dict[str, Any]:
    """Return a transaction that is open on a partition, as a JSON object."""
    known = each.transaction
    return {
        **topic_partition_json(each.topic_partition),
        "start_offset": each.producer.start_offset,
        "producer_id": each.producer.producer_id,
        "epoch": each.producer.epoch,
        "coordinator_epoch": each.producer.coordinator_epoch,
        "last_timestamp_ms": each.producer.last_ms,
        "cause": each.cause.value,
        "age_ms": each.age_ms,
        "transaction": None if known is None else as_json(known, now_ms),
        "advice": texts.advice(each),
    }


def partition_json(each: PartitionStatus, now_ms: int) -> dict[str, Any]:
    """Return a partition and the transactions that are open on it, as a JSON object."""
    return {
        **topic_partition_json(each.topic_partition),
        "leader": each.leader if each.leader >= 0 else None,
        "last_stable_offset": None if each.end_offsets is None else each.end_offsets.stable,
        "high_watermark": None if each.end_offsets is None else each.end_offsets.end,
        "unreadable_offsets": None if each.end_offsets is None else each.waiting,
        "blocked_by": open_transaction_json(each.open_transactions[0], now_ms)
        if each.open_transactions
        else None,
        "other_open_transactions": [
            open_transaction_json(other, now_ms) for other in each.open_transactions[1:]
        ],
    }
