"""`tidegate txn` on real brokers.

The command lists open transactions. It finds and ends transactions that block readers, and
distinguishes hanging transactions from others. The tests compare its output with golden files,
after they have replaced ages, times, ports and ids.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.brokers import TIMEOUT_S, create_topic, produce, read_all, unique
from integration.support.hanging_transaction import LENIENT, hang
from integration.support.txn_command import (
    TIMEOUT_MS,
    Answer,
    Txn,
    in_folder,
    normalised,
    opened,
    partition,
)
from integration.support.user_project import assert_golden
from tidegate.drivers.kafka.broker_config import choose_ports
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(180),
    # kafka-python leaves sockets of failed connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

HOUR_S = 3600.0
VERSIONS = ("4.3.0", "3.9.1")

KILLED = """
import sys, time
from confluent_kafka import Producer

bootstrap, name, topic = sys.argv[1:]
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name,
                     "transaction.timeout.ms": 900000})
producer.init_transactions()
producer.begin_transaction()
producer.produce(topic, b"never ended", partition=0)
assert producer.flush() == 0
print("written", flush=True)
time.sleep(600)
"""
"""A producer in a separate process, which is killed while its transaction is open."""
NEVER_FORGOTTEN = {"broker.session.timeout.ms": "60000"}
"""A long session, so that a killed broker stays in the metadata during the test. `tidegate txn` can
name only brokers that are in the metadata.
"""


@pytest.fixture
def txn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Txn:
    return in_folder(monkeypatch, tmp_path)


def test_txn_lists_shows_explains_and_aborts_an_open_transaction(
    any_kafka: EmbeddedKafka, txn: Txn
) -> None:
    bootstrap = any_kafka.bootstrap
    topic, name = unique("orders"), unique("order-service")
    create_topic(bootstrap, topic, partitions=2)
    producer = opened(bootstrap, name, topic)
    produce(bootstrap, topic, [(b"k%d" % number, b"committed") for number in range(20)])

    listed = txn("list", "--prefix", name, kafka=bootstrap)
    assert (listed.code, listed.err) == (0, "")
    assert_golden("txn-list", normalised(listed.out.rstrip("\n"), bootstrap))
    (row,) = txn("list", "--prefix", name, "--json", kafka=bootstrap).json["transactions"]
    assert (row["transactional_id"], row["state"], row["epoch"]) == (name, "Ongoing", 0)
    assert row["partitions"] == [{"topic": topic, "partition": 0}]
    assert (row["timeout_ms"], row["coordinator"], row["job"]) == (TIMEOUT_MS, 1, None)
    for none in (["--older-than", "1h"], ["--topic", f"{topic}:1"], ["--job", "other"]):
        answer = txn("list", "--prefix", name, *none, "--json", kafka=bootstrap)
        assert answer.json["transactions"] == [], none

    shown = txn("show", name, kafka=bootstrap)
    assert shown.code == 0
    assert_golden("txn-show", normalised(shown.out.rstrip("\n"), bootstrap))
    found = partition(txn("why-stuck", f"{topic}:0", "--json", kafka=bootstrap))
    assert found["last_stable_offset"] == 0
    assert found["unreadable_offsets"] == found["high_watermark"] > 1
    assert found["blocked_by"]["transaction"]["transactional_id"] == name
    assert found["blocked_by"]["cause"] == "open"
    assert (
        partition(txn("why-stuck", f"{topic}:1", "--json", kafka=bootstrap))["blocked_by"] is None
    )
    visible = len(read_all(bootstrap, topic))
    assert visible == 20 - (found["high_watermark"] - 1)

    asked = txn("abort", name, kafka=bootstrap)
    assert asked.code == 2
    assert "Use --yes in scripts" in asked.err
    done = txn("abort", name, "--yes", kafka=bootstrap)
    assert done.code == 0, done.err
    assert_golden("txn-abort", normalised(done.out.rstrip("\n"), bootstrap))
    assert len(read_all(bootstrap, topic)) == 20
    assert (
        txn("show", name, "--json", kafka=bootstrap).json["transaction"]["state"] == "CompleteAbort"
    )
    with pytest.raises(Exception, match="fenced"):
        producer.commit_transaction(TIMEOUT_S)
    again = txn("abort", name, "--yes", kafka=bootstrap)
    assert again.code == 2
    assert_golden("txn-abort-nothing-open", normalised(again.err.rstrip("\n"), bootstrap))


@pytest.mark.slow
def test_txn_finds_and_aborts_the_transaction_of_a_killed_producer_that_blocks_readers(
    any_kafka: EmbeddedKafka, txn: Txn
) -> None:
    bootstrap = any_kafka.bootstrap
    topic, name = unique("orders"), unique("order-service")
    create_topic(bootstrap, topic, partitions=1)
    words = [sys.executable, "-c", KILLED, bootstrap, name, topic]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"written\n"
        finally:
            process.kill()
    produce(bootstrap, topic, [(None, b"behind")] * 3)
    assert read_all(bootstrap, topic) == []

    stuck = txn("why-stuck", topic, kafka=bootstrap)
    assert stuck.code == 0
    assert_golden("txn-why-stuck", normalised(stuck.out.rstrip("\n"), bootstrap))
    advised = re.search(r"tidegate txn (abort \S+)", stuck.out)
    assert advised
    freed = txn(*advised[1].split(), "--yes", "--json", kafka=bootstrap)
    assert (freed.code, freed.json["outcome"]) == (0, "aborted")
    assert [each.value() for each in read_all(bootstrap, topic)] == [b"behind"] * 3
    after = txn("why-stuck", topic, kafka=bootstrap)
    assert_golden("txn-not-stuck", normalised(after.out.rstrip("\n"), bootstrap))


@pytest.fixture(scope="module", params=VERSIONS)
def lenient(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedKafka]:
    """A broker that accepts transactional records of a partition that no coordinator knows."""
    directory = tmp_path_factory.mktemp("lenient")
    with EmbeddedKafka.start(
        request.param, directory=directory, owned=True, properties=LENIENT
    ) as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["known-producer", "unknown-producer"])
def test_txn_finds_and_aborts_a_hanging_transaction(
    lenient: EmbeddedKafka, txn: Txn, known: bool
) -> None:
    bootstrap = lenient.bootstrap
    topic, name = unique("orders"), unique("order-service")
    create_topic(bootstrap, topic, partitions=1)
    hang(bootstrap, topic, name, known=known, age_s=HOUR_S)
    produce(bootstrap, topic, [(None, b"behind")] * 3)
    assert read_all(bootstrap, topic) == []

    (found,) = txn("list", "--hanging", "--topic", topic, "--json", kafka=bootstrap).json["hanging"]
    assert (found["cause"], found["start_offset"], found["coordinator_epoch"]) == ("hanging", 0, -1)
    assert (found["transaction"] is not None) == known
    other = txn("list", "--prefix", name, "--json", kafka=bootstrap)
    assert other.json["transactions"] == [], "no coordinator has it open"
    stuck = txn("why-stuck", topic, kafka=bootstrap)
    kind = "known" if known else "unknown"
    assert_golden(f"txn-hanging-{kind}", normalised(stuck.out.rstrip("\n"), bootstrap))

    where = ("--topic", topic, "--partition", "0", "--start-offset")
    elsewhere = txn("abort", *where, "1", "--yes", kafka=bootstrap)
    assert elsewhere.code == 2
    assert_golden("txn-abort-no-such-offset", normalised(elsewhere.err.rstrip("\n"), bootstrap))
    young = txn("abort", *where, "0", "--yes", "--max-transaction-timeout", "2h", kafka=bootstrap)
    assert young.code == 2
    assert "its end may be on its way" in young.err
    assert read_all(bootstrap, topic) == []
    done = txn("abort", *where, "0", "--yes", kafka=bootstrap)
    assert done.code == 0, done.err
    assert [each.value() for each in read_all(bootstrap, topic)] == [b"behind"] * 3
    assert (
        txn("list", "--hanging", "--topic", topic, "--json", kafka=bootstrap).json["hanging"] == []
    )


@pytest.mark.slow
def test_txn_does_not_abort_as_hanging_a_transaction_that_its_coordinator_knows(
    any_kafka: EmbeddedKafka, txn: Txn
) -> None:
    bootstrap = any_kafka.bootstrap
    topic, name = unique("orders"), unique("order-service")
    create_topic(bootstrap, topic, partitions=1)
    producer = opened(bootstrap, name, topic)
    everything = ("--max-transaction-timeout", "0s")
    hanging = txn("list", "--hanging", "--topic", topic, *everything, "--json", kafka=bootstrap)
    assert hanging.json["hanging"] == []
    where = ("--topic", topic, "--partition", "0", "--start-offset", "0")
    refused = txn("abort", *where, *everything, "--yes", kafka=bootstrap)
    assert refused.code == 2
    assert_golden("txn-abort-not-hanging", normalised(refused.err.rstrip("\n"), bootstrap))
    producer.commit_transaction(TIMEOUT_S)
    assert len(read_all(bootstrap, topic)) == 1


@pytest.mark.slow
def test_txn_fails_when_no_broker_answers(txn: Txn) -> None:
    (ports,) = choose_ports(1)
    bootstrap = f"127.0.0.1:{ports.client}"
    answer = txn("list", kafka=bootstrap)
    assert (answer.code, answer.out) == (1, "")
    assert_golden("txn-unreachable", normalised(answer.err.rstrip("\n"), bootstrap))


@pytest.mark.slow
def test_txn_lists_transactions_of_live_brokers_and_reports_the_broker_that_is_down(
    txn: Txn, tmp_path: Path
) -> None:
    directory = tmp_path / "three"
    with EmbeddedKafka.start(
        directory=directory, nodes=3, owned=True, properties=NEVER_FORGOTTEN
    ) as kafka:
        bootstrap = kafka.bootstrap
        topic = unique("orders")
        create_topic(bootstrap, topic, partitions=3)
        names = [unique("order-service") for _ in range(6)]
        producers = [
            opened(bootstrap, name, topic, partition=n % 3) for n, name in enumerate(names)
        ]
        rows = txn("list", "--json", kafka=bootstrap).json["transactions"]
        assert {row["transactional_id"] for row in rows} == set(names)
        of = {row["transactional_id"]: row["coordinator"] for row in rows}
        down = of[names[0]]
        kafka.kill(down - 1)

        def listed() -> Answer:
            return txn("list", "--json", kafka=bootstrap)

        answer = listed()
        assert answer.code == 1, "the list is not whole, and says so"
        assert f"broker {down}" in " ".join(answer.json["unreachable"])
        seen = {row["transactional_id"] for row in answer.json["transactions"]}
        assert seen >= {name for name in names if of[name] != down}
        told = txn("list", kafka=bootstrap)
        assert f"broker {down}" in told.err
        hanging = txn(
            "list", "--hanging", "--max-transaction-timeout", "0s", "--json", kafka=bootstrap
        )
        assert hanging.json["hanging"] == [], "its coordinator may be the one that is silent"
        del producers
        for node in range(3):  # a clean stop would wait for the session of the dead broker
            kafka.kill(node)


@pytest.mark.slow
def test_txn_refuses_unknown_or_malformed_ids_topics_and_brokers(
    kafka: EmbeddedKafka, txn: Txn
) -> None:
    topic = unique("orders")
    create_topic(kafka.bootstrap, topic, partitions=2)
    for golden, words in {
        "txn-id-unknown": ("show", "order-servise"),
        "txn-topic-unknown": ("why-stuck", "order"),
        "txn-partition-unknown": ("why-stuck", f"{topic}:2"),
        "txn-broker-unknown": ("list", "--broker", "7"),
        "txn-place-malformed": ("why-stuck", "orders:first"),
        "txn-duration-malformed": ("list", "--older-than", "5"),
        "txn-abort-of-what": ("abort", "--topic", topic),
    }.items():
        answer = txn(*words, kafka=kafka.bootstrap)
        assert (answer.code, answer.out) == (2, ""), golden
        assert_golden(golden, normalised(answer.err.rstrip("\n"), kafka.bootstrap))
