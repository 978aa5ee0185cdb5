"""The independent checker on a real broker: only committed records count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from confluent_kafka import Producer

from integration.demo.checker import check
from integration.support.brokers import TopicFactory, produce, unique
from tidegate.drivers.kafka.embedded import EmbeddedKafka

ORDERS = [("ann", "1.50"), ("bob", "2"), ("ann", "3.25")]
TOTALS = [("ann", "1.50"), ("bob", "2"), ("ann", "4.75")]


def written(rows: Sequence[tuple[str, str]], field: str) -> list[tuple[bytes, bytes]]:
    return [
        (customer.encode(), json.dumps({"customer_id": customer, field: text}).encode())
        for customer, text in rows
    ]


def in_transaction(
    bootstrap: str, topic: str, rows: Sequence[tuple[str, str]], *, commit: bool
) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": unique("checker"),
            "partitioner": "murmur2_random",
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in written(rows, "total"):
        producer.produce(topic, value, key)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def test_checker_counts_only_committed_totals(
    kafka: EmbeddedKafka, topic_factory: TopicFactory
) -> None:
    orders, totals = topic_factory("orders"), topic_factory("totals")
    produce(kafka.bootstrap, orders, written(ORDERS, "amount"))
    in_transaction(kafka.bootstrap, totals, TOTALS, commit=False)
    verdict = check(kafka.bootstrap, orders, totals)
    assert (verdict.exact, verdict.records_out, verdict.missing) == (False, 0, 3)

    in_transaction(kafka.bootstrap, totals, TOTALS, commit=True)
    verdict = check(kafka.bootstrap, orders, totals, until=3)
    assert (verdict.exact, verdict.records_out) == (True, 3)

    in_transaction(kafka.bootstrap, totals, TOTALS[-1:], commit=True)
    verdict = check(kafka.bootstrap, orders, totals, until=4)
    assert (verdict.exact, verdict.doubled) == (False, 1)


def test_checker_command_exits_with_1_if_the_output_is_not_exact(
    kafka: EmbeddedKafka, topic_factory: TopicFactory
) -> None:
    orders, totals = topic_factory("orders"), topic_factory("totals")
    produce(kafka.bootstrap, orders, written(ORDERS, "amount"))
    in_transaction(kafka.bootstrap, totals, TOTALS[:2], commit=True)
    command = [sys.executable, "-m", "integration.demo.checker", "--bootstrap", kafka.bootstrap]
    command += ["--orders", orders, "--totals", totals]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "NOT EXACT"), done.stderr
    in_transaction(kafka.bootstrap, totals, TOTALS[2:], commit=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "exact"), done.stderr
