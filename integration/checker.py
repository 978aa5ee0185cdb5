"""The independent checker: was what the orders lead to written exactly once, in order?

It shares nothing with what it judges: it imports confluent_kafka and the standard library, reads
both topics with `read_committed`, computes from the orders anew what is due for every customer, and
compares value by value in offset order. What is due is a running total after each order (the field
`total`), or each order's id (the field `order_id`). `judge` is the comparison, on records from
anywhere; `check` reads them from Kafka; `python -m integration.checker` is the command, exit code 0
where the output is exact and 1 where it is not.

What it needs of the input: each customer's orders in one partition, so that their order is defined
(it refuses anything else). What it demands of the output: for each customer, in one partition,
keyed by the customer, the very sequence that is due: nothing missing, nothing twice, nothing that
was never due, nothing in another order.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

PROBLEMS_SHOWN = 10
SILENCE_S_MAX = 30.0
"""So long nothing may come of a topic whose end is not reached."""
BATCH = 5_000
BATCH_S = 0.1

TOTAL, ORDER_ID = "total", "order_id"
"""Fields of an output record that can be judged."""

Values = list[Any]
"""Of one customer, in order: decimals where totals are judged, else strings."""


class Record(NamedTuple):
    """A record as it stands in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Verdict:
    """What was found; `exact` only if nothing is wrong."""

    exact: bool = True
    records_in: int = 0
    records_expected: int = 0
    records_out: int = 0
    missing: int = 0
    doubled: int = 0
    wrong_order: int = 0
    never_due: int = 0
    """Values that no order leads to, or that stand where they do not belong."""
    first_problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Note that the output is not exact, and why."""
        self.exact = False
        if len(self.first_problems) < PROBLEMS_SHOWN:
            self.first_problems.append(text)


def check(
    bootstrap: str,
    source: str,
    sink: str,
    *,
    others: Sequence[str] = (),
    field: str = TOTAL,
    minimum: Decimal = Decimal(0),
    until: int | None = None,
    timeout_s: float = SILENCE_S_MAX,
) -> Verdict:
    """Read both topics up to their ends as they are now, and judge.

    `others` are more topics with orders, of customers who have none in `source`. `until` waits
    first, for `timeout_s` at most, until the sink holds so many committed records.
    TimeoutError when a topic's end is not reached, ValueError for an input that defines no order.
    """
    if until is not None:
        _await_records(bootstrap, sink, until, timeout_s)
    verdict = judge(
        joined([read_committed(bootstrap, each, timeout_s) for each in (source, *others)]),
        read_committed(bootstrap, sink, timeout_s),
        minimum,
        field=field,
    )
    hidden = hidden_offsets(bootstrap, sink, timeout_s)
    if hidden and not verdict.exact:
        verdict.first_problems.append(f"an open transaction hides {hidden} offsets of {sink}")
    return verdict


def judge(
    orders: Iterable[Record],
    output: Iterable[Record],
    minimum: Decimal,
    *,
    field: str = TOTAL,
    complete: bool = True,
) -> Verdict:
    """Compare the output with what the orders lead to; both in offset order of each partition.

    `complete=False` judges an output that is still being written: each customer's must be the
    beginning of what is due, so nothing may be left out, and only the rest may be missing.
    """
    verdict = Verdict()
    expected = _expected(orders, minimum, field, verdict)
    found = _found(output, field, verdict)
    for customer, all_due in expected.items():
        got = found.pop(customer, [])
        due = all_due if complete else all_due[: len(got)]
        if got != due:
            _compare(customer, due, got, verdict)
    for customer, got in found.items():
        verdict.never_due += len(got)
        verdict.problem(f"{customer}: {len(got)} values, first {got[0]}, and no order leads to any")
    return verdict


def joined(topics: Sequence[Iterable[Record]]) -> Iterator[Record]:
    """The records of all topics. Each topic's partitions get numbers of their own: a customer with
    orders in two topics is one in two partitions, and refused.
    """
    for number, records in enumerate(topics):
        for record in records:
            yield record._replace(partition=record.partition * len(topics) + number)


def taken_back(seen: Iterable[Record], final: Iterable[Record]) -> int:
    """How many of the committed records that a reader saw while the job ran are not, or not the
    same, at the end: a reader acts on what it sees, so nothing visible may ever change.
    """
    there = {(record.partition, record.offset): record for record in final}
    return sum(there.get((record.partition, record.offset)) != record for record in seen)


def read_committed(
    bootstrap: str, topic: str, silence_s: float = SILENCE_S_MAX
) -> Iterator[Record]:
    """All committed records of a topic up to its end as it is now, each partition in order."""
    consumer = _consumer(bootstrap)
    try:
        partitions = _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        unfinished, heard_s = set(partitions), time.monotonic()
        while unfinished:
            batch = consumer.consume(BATCH, BATCH_S)
            if batch:
                heard_s = time.monotonic()
            elif time.monotonic() - heard_s > silence_s:
                ends = ", ".join(map(str, sorted(unfinished)))
                raise TimeoutError(f"the end of {topic} was not reached in partitions {ends}")
            for message in batch:
                error = message.error()
                number = message.partition() or 0  # the types allow None, a read record has both
                if error is None:
                    yield Record(number, message.offset() or 0, message.key(), message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(number)
                else:
                    raise RuntimeError(str(error))
    finally:
        consumer.close()


def hidden_offsets(bootstrap: str, topic: str, timeout_s: float = SILENCE_S_MAX) -> int:
    """Offsets behind the first open transaction of each partition: no committed reader sees
    them.
    """
    ends = [_ends(bootstrap, topic, level, timeout_s) for level in ("uncommitted", "committed")]
    return ends[0] - ends[1]


# --- the comparison -----------------------------------------------------------------------------


def _expected(
    orders: Iterable[Record], minimum: Decimal, field: str, verdict: Verdict
) -> dict[str, Values]:
    """What is due for each customer, in order."""
    due: dict[str, Values] = {}
    homes: dict[str, int] = {}
    for record in orders:
        verdict.records_in += 1
        order = _json(record)
        customer, amount = order["customer_id"], Decimal(order["amount"])
        if homes.setdefault(customer, record.partition) != record.partition:
            raise ValueError(
                f"orders of {customer} stand in partitions {homes[customer]} and "
                f"{record.partition}: their order is not defined, so nothing can be judged"
            )
        if amount <= minimum:
            continue
        verdict.records_expected += 1
        sequence = due.setdefault(customer, [])
        if field == TOTAL:
            sequence.append(sequence[-1] + amount if sequence else amount)
        else:
            sequence.append(order[field])
    return due


def _found(output: Iterable[Record], field: str, verdict: Verdict) -> dict[str, Values]:
    """Each customer's values as they stand in the output."""
    found: dict[str, Values] = {}
    homes: dict[str, int] = {}
    for record in output:
        verdict.records_out += 1
        where = f"partition {record.partition}, offset {record.offset}"
        try:
            body = _json(record)
            customer = body["customer_id"]
            value = Decimal(body[field]) if field == TOTAL else body[field]
        except (ValueError, KeyError, TypeError, ArithmeticError) as error:
            verdict.never_due += 1
            verdict.problem(f"{where}: {record.value!r} has no {field}: {error!r}")
            continue
        if record.key != customer.encode():
            verdict.problem(f"{where}: a record of {customer} under the key {record.key!r}")
        if homes.setdefault(customer, record.partition) != record.partition:
            verdict.problem(f"{where}: {customer} was in partition {homes[customer]} before")
        found.setdefault(customer, []).append(value)
    return found


def _compare(customer: str, due: Values, got: Values, verdict: Verdict) -> None:
    """Say what is wrong with one customer's values."""
    due_times, got_times = Counter(due), Counter(got)
    missing, surplus = due_times - got_times, got_times - due_times
    doubled = {value: times for value, times in surplus.items() if value in due_times}
    verdict.missing += missing.total()
    verdict.doubled += sum(doubled.values())
    verdict.never_due += surplus.total() - sum(doubled.values())
    if not missing and not surplus:
        verdict.wrong_order += sum(a != b for a, b in zip(due, got, strict=True))
    place = next(
        (at for at, (a, b) in enumerate(zip(due, got, strict=False)) if a != b),
        min(len(due), len(got)),
    )
    wanted = due[place] if place < len(due) else "nothing more"
    stands = got[place] if place < len(got) else "nothing"
    verdict.problem(
        f"{customer}: value {place + 1} of {len(due)} should be {wanted} and is {stands} "
        f"({missing.total()} missing, {sum(doubled.values())} twice, {len(got)} in all)"
    )


def _json(record: Record) -> dict[str, Any]:
    if record.value is None:
        raise ValueError(f"partition {record.partition}, offset {record.offset} holds no value")
    # Numbers become Decimals from their digits: a float in between would round.
    body = json.loads(record.value, parse_float=Decimal)
    if not isinstance(body, dict):
        raise TypeError(f"partition {record.partition}, offset {record.offset} holds no object")
    return body


# --- Kafka --------------------------------------------------------------------------------------


def _consumer(bootstrap: str, isolation: str = "committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",  # never joined: partitions are assigned, nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": f"read_{isolation}",
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    found = consumer.list_topics(topic, SILENCE_S_MAX).topics[topic]
    if found.error is not None:
        raise LookupError(f"topic {topic}: {found.error}")
    return sorted(found.partitions)


def _ends(bootstrap: str, topic: str, isolation: str, timeout_s: float) -> int:
    consumer = _consumer(bootstrap, isolation)
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout_s)[1]
            for number in _partitions(consumer, topic)
        )
    finally:
        consumer.close()


def _await_records(bootstrap: str, topic: str, count: int, timeout_s: float) -> None:
    """Return when the topic has so many committed records, or when the time is over."""
    consumer = _consumer(bootstrap)
    try:
        numbers = _partitions(consumer, topic)
        consumer.assign([TopicPartition(topic, number, 0) for number in numbers])
        seen, end_s = 0, time.monotonic() + timeout_s
        while seen < count and time.monotonic() < end_s:
            seen += sum(m.error() is None for m in consumer.consume(BATCH, BATCH_S))
    finally:
        consumer.close()


# --- the command --------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Judge two topics and print the verdict; exit code 0 if the output is exact."""
    parser = argparse.ArgumentParser(prog="python -m integration.checker", description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="brokers, HOST:PORT,...")
    parser.add_argument("--orders", required=True, help="the input topic")
    parser.add_argument("--totals", required=True, help="the output topic")
    parser.add_argument("--minimum", type=Decimal, default=Decimal(0), help="of an order's amount")
    parser.add_argument("--until", type=int, help="wait for so many committed totals first")
    given = parser.parse_args(arguments)
    verdict = check(
        given.bootstrap, given.orders, given.totals, minimum=given.minimum, until=given.until
    )
    print(
        f"{'exact' if verdict.exact else 'NOT EXACT'}: {verdict.records_in:,} orders, "
        f"{verdict.records_expected:,} totals due, {verdict.records_out:,} found; "
        f"{verdict.missing:,} missing, {verdict.doubled:,} twice, "
        f"{verdict.wrong_order:,} in the wrong order, {verdict.never_due:,} never due"
    )
    for problem in verdict.first_problems:
        print(f"  {problem}")
    return 0 if verdict.exact else 1


if __name__ == "__main__":
    sys.exit(main())
