"""Bad input of a backfill: records that cannot be processed, and topics that change between waves.

After each failure, the output that earlier waves have published stays, and no output of the failed
wave is visible. No transaction is open, and the error names the record or the offsets. The next
backfill continues with exactly-once output where that is possible.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from integration.connectors.test_bad_records import header
from integration.exactly_once.test_recreated_topics import create_again
from integration.support.backfills import BackfillJob, in_process_host
from integration.support.brokers import TIMEOUT_S, unique
from integration.support.transactions import open_transactions
from integration.support.user_project import TOTALS, Folder
from tidegate.backfill.executor import Executor, InProcessExecutor, WaveTasks
from tidegate.config import Config
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import BadRecordError, RefusedError, SourceChangedError, UserCodeError
from tidegate.protocol.waves import TaskReport

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(180),
]

POLICIES = {
    "skip": ', on_bad_record="skip"',
    "dead_letter": ', on_bad_record="dead_letter", dead_letter_topic="{dead}"',
}
RAISES = """        if order.amount > 1:
            raise ValueError("more than one")
        self.total.value += order.amount
"""
OPEN_S = 10
BAD = b'{"customer": "c0"}'
"""An order without an amount."""


@dataclass
class Input:
    """A job whose orders are in one partition, with its settings."""

    folder: Folder
    settings: dict[str, Any]

    def job(self, text: str = TOTALS) -> BackfillJob:
        """Make the job with this code. Each call writes a new module."""
        module = unique("job").replace("-", "_")
        self.folder.write(f"{module}.py", text)
        settings = {"kafka.bootstrap_servers": self.folder.bootstrap, **self.settings}
        return BackfillJob(f"{module}:Totals", self.folder.path, settings)

    def open_transactions(self) -> list[str]:
        return open_transactions(self.folder.bootstrap, self.folder.job)

    def visible(self) -> int:
        return len(self.folder.read("totals"))

    def journal(self) -> list[str]:
        """Return the kinds of the journal entries, oldest first."""
        folder = self.folder.path / "checkpoints" / self.folder.job / "journal"
        paths = sorted(folder.glob("*.json"))
        return [json.loads(path.read_bytes())["body"]["kind"] for path in paths]

    def assert_closed_at(self, records: int) -> None:
        """Check that the backfill has ended, with the outputs of `records` records."""
        self.folder.assert_exact(records)
        assert self.open_transactions() == []
        assert self.journal()[-1] == "closed"

    def assert_stopped_at(self, records: int) -> None:
        """Check that only the published output is visible, that no transaction is open, and that
        the job can continue.
        """
        assert self.visible() == records
        self.folder.assert_exact(records)
        assert self.open_transactions() == []
        assert "closed" not in self.journal()


@pytest.fixture
def given(kafka: EmbeddedKafka, tmp_path: Path) -> Input:
    topics = ("orders", "totals", "dead")
    return Input(Folder.make(tmp_path, kafka.bootstrap, topics=topics), {})


class InterferingExecutor:
    """An executor that calls a function before or after the tasks of one wave run."""

    def __init__(
        self,
        *,
        wave: int,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self._real: Executor = InProcessExecutor(in_process_host(SystemDrivers()))
        self._left, self._before, self._after = wave, before, after

    def check(self, config: Config) -> None:
        self._real.check(config)

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        self._left -= 1
        if self._left == 0 and self._before is not None:
            self._before()
        reports = self._real.run(wave)
        if self._left == 0 and self._after is not None:
            self._after()
        return reports


def with_source(text: str) -> str:
    return TOTALS.replace("value=Json(Order))", f"value=Json(Order){text})")


# --- records ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_record_that_cannot_be_decoded_fails_the_backfill_and_is_named(given: Input) -> None:
    given.folder.orders(50)
    given.folder.send("orders", [(b"bad", BAD)])
    given.folder.orders(30, first=50)
    topic = given.folder.topics["orders"]
    driver, waves = given.job().driver(parallelism=2, wave_offsets=20)
    with pytest.raises(BadRecordError, match=rf"the record of {topic}-0 at offset 50 as Json"):
        driver.run()
    assert [wave.records_in for wave in waves] == [20, 20]
    given.assert_stopped_at(40)
    waves = given.job(with_source(POLICIES["skip"])).backfill(parallelism=3, wave_offsets=20)
    assert sum(wave.records_in for wave in waves) == 40
    assert sum(wave.skipped for wave in waves) == 1, "the waves say what they left out"
    given.folder.assert_exact(80)


def test_dead_letters_are_written_once_in_the_waves_of_their_records(given: Input) -> None:
    due = []
    for number in range(4):
        given.folder.orders(15, first=15 * number)
        given.folder.send("orders", [(b"bad", BAD)])
        due.append(16 * number + 15)
    job = given.job(with_source(POLICIES["dead_letter"]))
    waves = job.backfill(parallelism=2, wave_offsets=10)
    assert [wave.dead_letters for wave in waves] == [0, 1, 0, 1, 1, 0, 1]
    letters = given.folder.read("dead")
    assert [int(header(each, "source.offset")) for each in letters] == due
    assert [each.value() for each in letters] == [BAD] * 4
    given.folder.assert_exact(60)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "tries"), [("none", 1), ("fixed_delay", 3)])
def test_user_error_fails_the_backfill_after_the_configured_restarts_and_names_the_record(
    given: Input, strategy: str, tries: int
) -> None:
    given.settings |= {"restart.strategy": strategy, "restart.attempts": "2"}
    given.folder.orders(50)
    given.folder.send("orders", [(b"c1", b'{"customer": "c1", "amount": 2}')])
    topic, old = given.folder.topics["orders"], "        self.total.value += order.amount\n"
    assert old in TOTALS
    driver, waves = given.job(TOTALS.replace(old, RAISES)).driver(wave_offsets=40)
    with pytest.raises(UserCodeError, match=rf"from {topic}-0 at offset 50.*") as raised:
        driver.run()
    assert "step uid 'running'" in str(raised.value)
    assert "ValueError: more than one" in str(raised.value)
    assert len(waves) == 1
    assert given.journal().count("claim") == 1 + tries + 1, "the last one aborts what is open"
    given.assert_stopped_at(40)
    filtered = "self.orders.filter(lambda order: order.amount == 1).key_by("
    given.job(TOTALS.replace("self.orders.key_by(", filtered)).backfill(wave_offsets=40)
    given.folder.assert_exact(50)


@pytest.mark.slow
def test_a_source_that_begins_at_the_end_is_refused_until_a_live_job_has_begun(
    given: Input,
) -> None:
    latest = with_source(', starting_offsets="latest"')
    given.folder.orders(10)
    driver, _ = given.job(latest).driver()
    with pytest.raises(RefusedError, match="source 'orders' has starting_offsets='latest'"):
        driver.run()
    assert given.visible() == 0
    given.folder.write("job.py", latest)
    storage = str(given.folder.path / "checkpoints")
    live = given.folder.run(config={"checkpoint.dir": storage})
    assert live.code == 0, live.err
    given.folder.orders(30)
    given.job(latest).backfill(wave_offsets=10)
    given.folder.assert_exact(30)


@pytest.mark.slow
def test_records_behind_an_open_transaction_are_counted_and_left_to_the_next_run(
    given: Input,
) -> None:
    given.folder.orders(30)
    settings = {
        "bootstrap.servers": given.folder.bootstrap,
        "transactional.id": f"writer-{given.folder.job}",
        "log_level": 0,
    }
    writer = Producer(settings)
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    order = json.dumps({"customer": "c0", "amount": 1}).encode()
    writer.produce(given.folder.topics["orders"], order)
    assert writer.flush(TIMEOUT_S) == 0
    given.folder.orders(29, first=31)
    waves = given.job().backfill(wave_offsets=20)
    assert [wave.hidden_offsets for wave in waves] == [30, 0]
    given.assert_closed_at(30)
    writer.commit_transaction(TIMEOUT_S)
    waves = given.job().backfill(wave_offsets=20)
    assert sum(wave.records_in for wave in waves) == 30
    given.folder.assert_exact(60)


@pytest.fixture
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker that aborts a transaction soon after it has been open for ten seconds."""
    properties = {
        "transaction.max.timeout.ms": f"{OPEN_S * 1000}",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    folder = tmp_path_factory.mktemp("impatient")
    cluster = EmbeddedKafka.start(directory=folder, owned=True, properties=properties)
    yield cluster
    cluster.stop()


@pytest.mark.slow
def test_a_wave_that_outlives_its_transactions_is_halved_and_run_again(
    impatient: EmbeddedKafka, tmp_path: Path
) -> None:
    given = Input(Folder.make(tmp_path, impatient.bootstrap), {})
    given.folder.orders(60)

    def outlived() -> None:
        end_s = time.monotonic() + TIMEOUT_S + OPEN_S
        while given.open_transactions() and time.monotonic() < end_s:
            time.sleep(0.2)

    executor = InterferingExecutor(wave=1, after=outlived)
    driver, waves = given.job().driver(wave_offsets=60, executor=executor)
    assert driver.run()
    assert len(waves) >= 2, "half as much at a time"
    assert max(wave.records_in for wave in waves) <= 30
    given.assert_closed_at(60)


# --- topics -------------------------------------------------------------------------------------


def delete_before(folder: Folder, offset: int) -> None:
    """Delete the records before an offset, as retention does."""
    admin = AdminClient({"bootstrap.servers": folder.bootstrap, "log_level": 0})
    at = TopicPartition(folder.topics["orders"], 0, offset)
    for done in admin.delete_records([at], operation_timeout=TIMEOUT_S).values():
        done.result(TIMEOUT_S)


@pytest.mark.slow
def test_offsets_that_retention_deletes_between_two_waves_are_refused_and_named(
    given: Input,
) -> None:
    given.folder.orders(60)
    driver, waves = given.job().driver(wave_offsets=20)
    assert not driver.run(stop=lambda: bool(waves))
    delete_before(given.folder, 35)
    topic = given.folder.topics["orders"]
    with pytest.raises(RefusedError, match=rf"topic '{topic}', partition 0 was read up to") as no:
        driver.run()
    assert "offset 20" in str(no.value)
    assert "deleted everything before 35" in str(no.value)
    assert len(waves) == 1
    given.assert_stopped_at(20)


@pytest.mark.slow
def test_offsets_that_retention_deletes_before_a_wave_reads_them_are_refused_and_named(
    given: Input,
) -> None:
    """The wave fails and runs again. The second run is refused."""
    given.folder.orders(60)
    meddling = InterferingExecutor(wave=2, before=lambda: delete_before(given.folder, 35))
    driver, waves = given.job().driver(wave_offsets=20, executor=meddling)
    with pytest.raises(RefusedError, match=r"up to offset 20.*deleted everything before 35"):
        driver.run()
    assert len(waves) == 1
    given.assert_stopped_at(20)


@pytest.mark.slow
def test_unpublished_backfill_restarts_from_the_new_earliest_offset_after_retention(
    given: Input, caplog: pytest.LogCaptureFixture
) -> None:
    """A live job behaves in the same way. The deleted records were never read or counted."""
    given.folder.orders(60)
    meddling = InterferingExecutor(wave=1, before=lambda: delete_before(given.folder, 30))
    driver, waves = given.job().driver(wave_offsets=20, executor=meddling)
    assert driver.run()
    assert sum(wave.records_in for wave in waves) == 30
    (told,) = [each.getMessage() for each in caplog.records if "is run again" in each.msg]
    assert "is read from offset 0, cannot be read on" in told
    given.folder.assert_exact(30)


@pytest.mark.slow
def test_retention_of_records_that_a_wave_has_read_loses_nothing(given: Input) -> None:
    given.folder.orders(60)
    driver, waves = given.job().driver(wave_offsets=20)
    assert not driver.run(stop=lambda: bool(waves))
    delete_before(given.folder, 20)
    assert driver.run()
    assert [wave.records_in for wave in waves] == [20, 20, 20]
    given.folder.assert_exact(60)


@pytest.mark.slow
def test_a_topic_that_is_created_again_between_two_waves_is_refused(given: Input) -> None:
    given.folder.orders(60)
    driver, waves = given.job().driver(wave_offsets=20)
    assert not driver.run(stop=lambda: bool(waves))
    create_again(given.folder)
    given.folder.orders(60)
    with pytest.raises(RefusedError, match=r"is offset 20.*deleted and created again"):
        driver.run()
    assert len(waves) == 1
    given.assert_stopped_at(20)


@pytest.mark.slow
def test_wave_is_not_published_if_its_topic_was_recreated_while_it_ran(given: Input) -> None:
    given.folder.orders(60)

    def recreated() -> None:
        create_again(given.folder)
        given.folder.orders(60)

    driver, waves = given.job().driver(
        wave_offsets=20, executor=InterferingExecutor(wave=1, after=recreated)
    )
    with pytest.raises(SourceChangedError, match="deleted and created again while the job ran"):
        driver.run()
    assert waves == []
    given.assert_stopped_at(0)


@pytest.mark.slow
def test_a_topic_that_is_deleted_between_two_waves_is_refused(given: Input) -> None:
    given.settings["checkpoint.tolerated_outage"] = "3 s"
    given.folder.orders(60)
    driver, waves = given.job().driver(wave_offsets=20)
    assert not driver.run(stop=lambda: bool(waves))
    topic = given.folder.topics["orders"]
    admin = AdminClient({"bootstrap.servers": given.folder.bootstrap, "log_level": 0})
    admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
    with pytest.raises(RefusedError, match=r"is offset 20.*no topic of this name any more"):
        driver.run()
    assert len(waves) == 1
    given.assert_stopped_at(20)


@pytest.mark.slow
def test_partitions_that_are_added_between_two_waves_are_read(given: Input) -> None:
    given.folder.orders(60)
    driver, waves = given.job().driver(parallelism=2, wave_offsets=20)
    assert not driver.run(stop=lambda: bool(waves))
    topic = given.folder.topics["orders"]
    admin = AdminClient({"bootstrap.servers": given.folder.bootstrap, "log_level": 0})
    for done in admin.create_partitions([NewPartitions(topic, 3)]).values():
        done.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": given.folder.bootstrap, "log_level": 0})
    for number in range(30):
        order = {"customer": f"new-{number % 3}", "amount": 1}
        producer.produce(topic, json.dumps(order).encode(), partition=1 + number % 2)
    assert producer.flush(TIMEOUT_S) == 0
    assert driver.run()
    assert sum(wave.records_in for wave in waves) == 90
    assert given.visible() == 90
    found: dict[str, list[int]] = {}
    for message in given.folder.read("totals"):
        total = json.loads(message.value() or b"")
        found.setdefault(total["customer"], []).append(total["total"])
    assert found == {
        **{f"c{each}": list(range(1, 21)) for each in range(3)},
        **{f"new-{each}": list(range(1, 11)) for each in range(3)},
    }
