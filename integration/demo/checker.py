"""The independent checker: was each expected value written exactly once, and in order?

The checker shares no code with tidegate: it imports only confluent_kafka and the standard library.
It reads both topics with `read_committed`, and computes from the orders which values are expected
for each customer. It then compares value by value, in offset order. The expected values are a
running total after each order (the field `total`), or each order's id (the field `order_id`).
`judge` compares records from any source; `check` reads them from Kafka. The command is `python -m
integration.demo.checker`: it exits with 0 if the output is exact, and with 1 if it is not.

Condition for the input: all orders of a customer are in one partition, so that their order is
defined. The checker refuses any other input. Condition for the output: all records of a customer
are in one partition, have the customer as their key, and hold exactly the expected sequence. No
value may be missing, be there twice, be unexpected, or be in another order.
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
"""The longest time without a record before the end of a topic is reached, in seconds."""
BATCH = 5_000
BATCH_S = 0.1

TOTAL, ORDER_ID = "total", "order_id"
"""The fields of an output record that can be checked."""

Values = list[Any]
"""The values of one customer, in order: decimals if totals are checked, otherwise strings."""


class Record(NamedTuple):
    """A record of a topic, with its position."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Verdict:
    """The result of a check. `exact` is true only if nothing is wrong."""

    exact: bool = True
    records_in: int = 0
    records_expected: int = 0
    records_out: int = 0
    missing: int = 0
    doubled: int = 0
    wrong_order: int = 0
    never_due: int = 0
    """Number of values that no order explains, including records that cannot be read."""
    first_problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        """Record that the output is not exact, and the reason."""
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
    """Read both topics up to their present ends, and compare them.

    `others` are more topics with orders, of customers who have no orders in `source`. With `until`,
    the check first waits until the sink holds so many committed records, but at most `timeout_s`.
    Raises TimeoutError if the end of a topic is not reached, and ValueError if the orders of a
    customer are in several partitions.
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
    """Compare the output with the values expected from the orders.

    Both arguments have each partition's records in offset order. `complete=False` checks an output
    that is still being written: each customer's values must be the beginning of the expected
    sequence, so only values at its end may be missing.
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
    """Yield the records of all topics, with distinct partition numbers for each topic.

    A customer with orders in two topics therefore has orders in two partitions, and is refused.
    """
    for number, records in enumerate(topics):
        for record in records:
            yield record._replace(partition=record.partition * len(topics) + number)


def vanished_records(seen: Iterable[Record], final: Iterable[Record]) -> int:
    """Count the committed records that a reader saw during the run and that changed or disappeared.

    A reader acts on the records that it sees, so a visible record may never change.
    """
    there = {(record.partition, record.offset): record for record in final}
    return sum(there.get((record.partition, record.offset)) != record for record in seen)


def read_committed(
    bootstrap: str, topic: str, silence_s: float = SILENCE_S_MAX
) -> Iterator[Record]:
    """Yield all committed records of a topic up to its present end, each partition in order.

    Raises TimeoutError if no record arrives for `silence_s` before the end is reached.
    """
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
                number = message.partition() or 0  # a record that was read always has a number
                if error is None:
                    yield Record(number, message.offset() or 0, message.key(), message.value())
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(number)
                else:
                    raise RuntimeError(str(error))
    finally:
        consumer.close()


def hidden_offsets(bootstrap: str, topic: str, timeout_s: float = SILENCE_S_MAX) -> int:
    """Count the offsets from the first open transaction of each partition up to its end.

    No `read_committed` reader sees these offsets.
    """
    ends = [_ends(bootstrap, topic, level, timeout_s) for level in ("uncommitted", "committed")]
    return ends[0] - ends[1]


# --- the comparison -----------------------------------------------------------------------------


def _expected(
    orders: Iterable[Record], minimum: Decimal, field: str, verdict: Verdict
) -> dict[str, Values]:
    """Compute the expected values of each customer, in order."""
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
    """Collect each customer's values in the order of the output."""
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
    """Describe how one customer's values differ from the expected ones."""
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
    # Numbers are parsed as Decimal, because a float would round them.
    body = json.loads(record.value, parse_float=Decimal)
    if not isinstance(body, dict):
        raise TypeError(f"partition {record.partition}, offset {record.offset} holds no object")
    return body


# --- Kafka --------------------------------------------------------------------------------------


def _consumer(bootstrap: str, isolation: str = "committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "checker",  # not joined: partitions are assigned, no offset is committed
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
    """Wait until the topic has `count` committed records, or until the timeout."""
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
    """Check two topics and print the verdict. Return the exit code: 0 if the output is exact."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo.checker", description=__doc__)
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
