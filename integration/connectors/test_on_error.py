"""`on_error` over Kafka: a refused record is left out exactly once, also when a slot is killed.

One record fails at each of three places. The first has an integer beyond 64 bits, for which the
key function raises. The second has an amount that `process` refuses after it has
changed its state. The third fails at the key of the sink. The job counts the other records as if
these three did not exist.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from integration.conftest import soak_on_39
from integration.connectors.test_bad_records import header, publishing
from integration.support.user_project import TOTALS, Folder, orders_of_three_customers
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

BEYOND = b'{"customer": "c1", "amount": %d}' % 2**70
REFUSED = b'{"customer": "c2", "amount": -1}'
KEYLESS = b'{"customer": "", "amount": 1}'
CHECKED = """        self.total.value += order.amount
        yield Total(ctx.key, self.total.value)
        if order.amount < 0:
            raise ValueError(f"{order.customer} wants {order.amount}")
"""
POLICIES = {
    "key_by(lambda order: order.customer)": (
        "key_by(lambda order: {True: order.customer}[order.amount < 2**64], "
        'returns=str, on_error="{policy}"{letters})'
    ),
    "value=Json(Order))": 'value=Json(Order), on_bad_record="{policy}"{letters})',
    'uid="running"': 'uid="running", on_error="{policy}"{letters}',
    "record_key=lambda total: total.customer)": (
        'record_key=lambda total: total.customer[0], on_error="{policy}"{letters})'
    ),
}


def make(kafka: EmbeddedKafka, path: Path, policy: str, *, partitions: int = 1) -> Folder:
    change, result = CHECKED.splitlines(keepends=True)[:2]
    text = TOTALS.replace(change + result, CHECKED)
    for old, new in POLICIES.items():
        assert old in text
        text = text.replace(old, new)
    letters = ', dead_letter_topic="{dead}"' if policy == "dead_letter" else ""
    text = text.replace("{policy}", policy).replace("{letters}", letters)
    topics = ("orders", "totals", "dead")
    return Folder.make(path, kafka.bootstrap, text, topics=topics, partitions=partitions)


def send(folder: Folder, first: int) -> None:
    """Write 20 orders, and among them three records that cannot be processed."""
    orders = orders_of_three_customers(range(first, first + 20))
    bad = [(b"bad", value) for value in (BEYOND, REFUSED, KEYLESS)]
    folder.send("orders", [*orders[:9], *bad[:2], *orders[9:], bad[2]])


def assert_letters(folder: Folder, times: int) -> None:
    due = {
        (message.partition(), message.offset())
        for message in folder.read("orders")
        if message.key() == b"bad"
    }
    letters = folder.read("dead")
    found = [
        (int(header(each, "source.partition")), int(header(each, "source.offset")))
        for each in letters
    ]
    assert len(found) == 3 * times, "a letter is there twice, or is missing"
    assert set(found) == due
    steps = sorted(header(each, "step").split(" (")[0] for each in letters)
    assert steps == sorted(["key_by before running", "running", "totals"] * times)
    for each in letters:
        assert header(each, "source.topic") == folder.topics["orders"]
        assert header(each, "error")


@pytest.mark.once
@pytest.mark.parametrize("parallelism", ["1", "2"])
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
def test_job_with_on_error_continues_without_failing_records(
    kafka: EmbeddedKafka, tmp_path: Path, policy: str, parallelism: str
) -> None:
    folder = make(kafka, tmp_path, policy, partitions=2)
    send(folder, 0)
    outcome = folder.run("--json", "-p", parallelism)
    assert outcome.code == 0, outcome.err
    folder.assert_exact(20)
    report = json.loads(outcome.out.splitlines()[-1])
    counted = {"skip": (3, 0), "dead_letter": (0, 3)}[policy]
    assert (report["skipped"], report["dead_letters"]) == counted
    if policy == "dead_letter":
        assert_letters(folder, 1)
    assert folder.logs().count("a record is refused") == 3
    assert f"topic={folder.topics['orders']}" in folder.logs()


@soak_on_39
def test_dead_letters_of_refused_records_are_exact_when_slots_are_killed(
    any_kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(any_kafka, tmp_path, "dead_letter", partitions=2)
    rounds = killed = 0
    with folder.started("-p", "2", bounded=False) as run:
        for _ in range(2):
            for _ in range(6):
                send(folder, 20 * rounds)
                rounds += 1
            killed = run.until(partial(publishing, folder, killed), "publishing", 60)
            for _ in range(6):
                send(folder, 20 * rounds)
                rounds += 1
            os.kill(run.until(run.slots, "with slots")[0], signal.SIGKILL)
        total = 20 * rounds
        run.until(lambda: len(folder.read("totals")) >= total, "at the end of its input", 90)
        # The last record of the input gives only a dead letter.
        run.until(lambda: len(folder.read("dead")) >= 3 * rounds, "with all dead letters", 90)
        outcome = run.stop()
    assert outcome.code == 0, outcome.err
    folder.assert_exact(total)
    assert_letters(folder, rounds)


@pytest.mark.slow
def test_failing_record_without_a_policy_fails_the_job(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path, "fail")
    send(folder, 0)
    outcome = folder.run(config={"restart.strategy": "none"})
    assert outcome.code == 1, outcome.err
    assert folder.read("totals") == []
