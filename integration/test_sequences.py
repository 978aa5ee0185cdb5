"""Sequence numbers that go wrong, and markers that are written twice: what Kafka and librdkafka
have lost or doubled records by, on a real broker whose requests a proxy spoils one by one.

A producer numbers what it writes to each partition. Brokers take the first number of a producer
that is new to a partition, whatever it is (KAFKA-15591), and answer OUT_OF_ORDER_SEQUENCE_NUMBER
where a later one is missing. Clients have gone on wrongly from there: librdkafka took a new epoch,
and with it a new transaction, in the middle of one (librdkafka#3575), or wrote again under the new
epoch what it had written under the old one (librdkafka#4953). A coordinator whose marker was
written and not answered for repeats it, and was refused for ever (KAFKA-19999).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.chaos.mains import KAFKA, MAINS
from integration.killing.runs import Job, Run
from integration.meddler import (
    HOST,
    LOSE,
    NOT_LEADER,
    OUT_OF_ORDER,
    PASS,
    PRODUCE,
    WRITE_TXN_MARKERS,
    WRITTEN,
    Fate,
    Meddler,
    Request,
    Told,
    pass_all,
)
from integration.test_broker_operations import PACE, fed, kill_a_slot
from tidegate.drivers.kafka.broker_config import NodePorts, choose_ports
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

REFUSED = 20
LOST = 10
LONG = {"checkpoint.interval": "5 s"}
YOUNG_S = 1.0


@dataclass(slots=True)
class Meddled:
    """A broker with a proxy in front of what slots use, and one in front of what it uses itself."""

    kafka: EmbeddedKafka
    slots: Meddler
    itself: Meddler

    @contextmanager
    def job(self, folder: Path) -> Iterator[Job]:
        """A job; the proxies are calm before it and behind it."""
        try:
            yield Job.make(self.kafka.bootstrap, folder, "TwoSinks")
        finally:
            self.slots.rule = self.itself.rule = pass_all

    def started(
        self, job: Job, config: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Run]:
        """The job's slots reach the broker through their proxy, and its coordinator itself."""
        environment = {KAFKA + "SLOT": self.slots.address}
        return job.started(pace=PACE, run_mains=MAINS, environment=environment, config=config)


@pytest.fixture(scope="module")
def meddled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meddled]:
    yield from start_meddled("4.3.1", tmp_path_factory.mktemp("meddled"))


def start_meddled(version: str, folder: Path) -> Iterator[Meddled]:
    with ExitStack() as stack:
        slots, itself = stack.enter_context(Meddler()), stack.enter_context(Meddler())
        own = [f"{HOST}:{each.client}" for each in choose_ports(2)]
        slots.target, itself.target = own

        def properties(node: int, ports: Sequence[NodePorts]) -> Mapping[str, str]:
            plain, control = ports[node].client, ports[node].controller
            return {
                "listeners": f"PLAINTEXT://{HOST}:{plain},CONTROLLER://{HOST}:{control},"
                f"SLOT://{own[0]},ITSELF://{own[1]}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},SLOT://{slots.address},"
                f"ITSELF://{itself.address}",
                "inter.broker.listener.name": "ITSELF",
                "listener.security.protocol.map": ",".join(
                    f"{name}:PLAINTEXT" for name in ("CONTROLLER", "PLAINTEXT", "SLOT", "ITSELF")
                ),
                "broker.session.timeout.ms": "60000",
            }

        kafka = EmbeddedKafka.start(version, directory=folder, owned=True, properties=properties)
        with kafka:
            yield Meddled(kafka, slots, itself)
            kafka.kill()  # in order takes seconds, and nobody needs the data


Choice = Callable[[Request], bool]


def those_with_number(number: int) -> Choice:
    """Of the requests of a transactional id for a partition, the one with this number."""
    seen: Counter[tuple[str, frozenset[tuple[str, int]]]] = Counter()

    def chosen(request: Request) -> bool:
        writes = (str(request.produced().transactional_id), request.partitions())
        seen[writes] += 1
        return seen[writes] == number

    return chosen


@dataclass(slots=True)
class Begun:
    """Finds the requests of transactions that have begun a moment ago."""

    _at_s: dict[tuple[str, frozenset[tuple[str, int]]], float] = field(default_factory=dict)

    def goes_on(self, request: Request) -> bool:
        """Whether it is not the first for its partition, and the first is younger than a second."""
        writes = (str(request.produced().transactional_id), request.partitions())
        if request.begins():
            self._at_s[writes] = time.monotonic()
            return False
        return time.monotonic() - self._at_s.get(writes, 0.0) < YOUNG_S


def test_a_request_that_is_refused_is_not_overtaken_by_the_next(
    meddled: Meddled, tmp_path: Path
) -> None:
    """The broker takes any first sequence of a producer that is new to a partition (KAFKA-15591),
    and librdkafka counts what is before an acknowledged record as written: the refused records were
    lost, in a transaction that was committed, and nobody was told.
    """
    slots, chosen = meddled.slots, those_with_number(1)
    slots.overtaken, before = 0, slots.kept

    def rule(request: Request) -> Fate:
        spoils = request.kind == PRODUCE and slots.kept < before + REFUSED and chosen(request)
        return Told(NOT_LEADER) if spoils else PASS

    with meddled.job(tmp_path) as job:
        job.write(500, seed=10_000)
        slots.rule = rule
        with meddled.started(job) as run:
            with fed(job):
                run.until(lambda: slots.kept == before + REFUSED, "refused requests", 60)
                run.until_published(2)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        assert slots.overtaken == 0
        job.assert_exact()


def test_a_hole_in_a_sequence_fails_the_transaction_and_loses_nothing(
    meddled: Meddled, tmp_path: Path
) -> None:
    """A leader acknowledges records and loses them. The next ones are out of order; a client that
    goes on under another epoch commits a transaction without the ones before (librdkafka#3575), or
    writes them twice (librdkafka#4953).
    """
    slots, begun = meddled.slots, Begun()
    slots.produce_errors.clear()
    before = slots.kept

    def rule(request: Request) -> Fate:
        # One at the beginning of a long transaction: the next request follows before its end. Of a
        # transaction's last or first records for a partition nobody would hear that they are lost.
        spoils = request.kind == PRODUCE and slots.kept == before and begun.goes_on(request)
        return Told(WRITTEN) if spoils else PASS

    with meddled.job(tmp_path) as job:
        job.write(500, seed=10_000)
        slots.rule = rule
        with meddled.started(job, LONG) as run:
            with fed(job):
                run.until(lambda: OUT_OF_ORDER in slots.produce_errors, "a hole", 60)
                run.until(lambda: len(job.claims()) > 1, "another attempt", 60)
                run.until_published(1)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.assert_exact()


def test_answers_to_writes_that_are_lost_double_nothing(meddled: Meddled, tmp_path: Path) -> None:
    """The broker has written, and the connection ends before it says so; the producer repeats."""
    slots = meddled.slots
    produced = [0]

    def rule(request: Request) -> Fate:
        if request.kind != PRODUCE:
            return PASS
        produced[0] += 1
        return LOSE if produced[0] % 5 == 0 and slots.lost < LOST else PASS

    with meddled.job(tmp_path) as job:
        job.write(500, seed=10_000)
        slots.rule = rule
        with meddled.started(job) as run:
            with fed(job):
                run.until(lambda: slots.lost == LOST, "lost answers", 60)
                run.until_published(2)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.assert_exact()


def test_markers_whose_answers_are_lost_end_their_transactions(
    meddled: Meddled, tmp_path: Path
) -> None:
    """KAFKA-19999: a coordinator that repeats a marker is refused by the partition's leader for
    ever, and the transaction stays in PrepareCommit or PrepareAbort.
    """
    itself = meddled.itself
    markers = [0]

    def rule(request: Request) -> Fate:
        if request.kind != WRITE_TXN_MARKERS:
            return PASS
        markers[0] += 1
        return LOSE if markers[0] % 3 == 0 and itself.lost < 2 * LOST else PASS

    with meddled.job(tmp_path) as job:
        job.write(500, seed=10_000)
        itself.rule = rule
        with job.started(pace=PACE) as run:
            with fed(job):
                run.until(lambda: itself.lost == LOST, "lost answers", 60)
                kill_a_slot(run)  # what is open is aborted, which takes markers, too
                run.until_published(2)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.assert_exact()
