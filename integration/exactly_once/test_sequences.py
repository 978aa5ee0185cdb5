"""Wrong sequence numbers, and transaction markers that are written twice.

Kafka and librdkafka have lost or duplicated records in these cases. The tests use a real broker
behind a proxy that disturbs single requests.

A producer numbers its records in each partition. A broker accepts any first number of a producer
that is new to a partition (KAFKA-15591). It answers OUT_OF_ORDER_SEQUENCE_NUMBER if a later number
is missing. Clients have then continued wrongly. librdkafka took a new epoch, and with it a new
transaction, in the middle of a transaction (librdkafka#3575). It also wrote records again under the
new epoch that it had written under the old one (librdkafka#4953). A coordinator repeats a marker
that was written but not acknowledged. The partition's leader then refused it for ever
(KAFKA-19999).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from integration.exactly_once.test_broker_operations import PACE, fed, kill_a_slot
from integration.faults.kafka_proxy import (
    HOST,
    LOSE,
    NOT_LEADER,
    OUT_OF_ORDER,
    PASS,
    PRODUCE,
    WRITE_TXN_MARKERS,
    WRITTEN,
    ErrorAnswer,
    KafkaProxy,
    Reaction,
    Request,
    pass_all,
)
from integration.faults.kill_matrix.mains import KAFKA, MAINS
from integration.faults.kill_points.killed_runs import Job, Run
from tidegate.drivers.kafka.broker_config import NodePorts, choose_ports
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]

REFUSED = 20
LOST = 10
LONG = {"checkpoint.interval": "5 s"}
YOUNG_S = 1.0


@dataclass(slots=True)
class ProxiedCluster:
    """A broker with two proxies: one in front of the listener of the slots, and one in front of the
    listener that the broker uses itself.
    """

    kafka: EmbeddedKafka
    slots: KafkaProxy
    itself: KafkaProxy

    @contextmanager
    def job(self, folder: Path) -> Iterator[Job]:
        """Make a job. The proxies pass all requests before and after the block."""
        try:
            yield Job.make(self.kafka.bootstrap, folder, "TwoSinks")
        finally:
            self.slots.rule = self.itself.rule = pass_all

    def started(
        self, job: Job, config: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Run]:
        """Start the job. Its slots use their proxy; its JobMaster connects directly."""
        environment = {KAFKA + "SLOT": self.slots.address}
        return job.started(pace=PACE, run_mains=MAINS, environment=environment, config=config)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    yield from start_proxied("4.3.1", tmp_path_factory.mktemp("meddled"))


def start_proxied(version: str, folder: Path) -> Iterator[ProxiedCluster]:
    with ExitStack() as stack:
        slots, itself = stack.enter_context(KafkaProxy()), stack.enter_context(KafkaProxy())
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
            yield ProxiedCluster(kafka, slots, itself)
            kafka.kill()  # a clean stop takes seconds, and the data is not used


Choice = Callable[[Request], bool]


def those_with_number(number: int) -> Choice:
    """Make a function that selects the n-th request of each transactional id for a partition."""
    seen: Counter[tuple[str, frozenset[tuple[str, int]]]] = Counter()

    def chosen(request: Request) -> bool:
        writes = (str(request.produced().transactional_id), request.partitions())
        seen[writes] += 1
        return seen[writes] == number

    return chosen


@dataclass(slots=True)
class Begun:
    """A filter for requests of transactions that are younger than `YOUNG_S`."""

    _at_s: dict[tuple[str, frozenset[tuple[str, int]]], float] = field(default_factory=dict)

    def goes_on(self, request: Request) -> bool:
        """Return whether a request follows the first one for its partition within a second."""
        writes = (str(request.produced().transactional_id), request.partitions())
        if request.is_first_batch():
            self._at_s[writes] = time.monotonic()
            return False
        return time.monotonic() - self._at_s.get(writes, 0.0) < YOUNG_S


def test_refused_produce_request_is_not_overtaken_by_the_next_request(
    proxied: ProxiedCluster, tmp_path: Path
) -> None:
    """A broker accepts any first sequence of a producer that is new to a partition (KAFKA-15591).
    librdkafka treats the records before an acknowledged record as written. Together this lost the
    refused records, in a committed transaction and without an error.
    """
    slots, chosen = proxied.slots, those_with_number(1)
    slots.overtaken, before = 0, slots.kept

    def rule(request: Request) -> Reaction:
        spoils = request.kind == PRODUCE and slots.kept < before + REFUSED and chosen(request)
        return ErrorAnswer(NOT_LEADER) if spoils else PASS

    with proxied.job(tmp_path) as job:
        job.write(500, seed=10_000)
        slots.rule = rule
        with proxied.started(job) as run:
            with fed(job):
                run.until(lambda: slots.kept == before + REFUSED, "refused requests", 60)
                run.until_published(2)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        assert slots.overtaken == 0
        job.assert_exact()


def test_sequence_gap_fails_the_attempt_and_loses_no_record(
    proxied: ProxiedCluster, tmp_path: Path
) -> None:
    """A leader acknowledges records and loses them, so the next ones are out of order.

    A client that continues under another epoch commits the transaction without the lost records
    (librdkafka#3575), or writes records twice (librdkafka#4953).
    """
    slots, begun, armed = proxied.slots, Begun(), threading.Event()
    slots.produce_errors.clear()
    before = slots.kept

    def rule(request: Request) -> Reaction:
        # The lost request is near the start of a transaction of five seconds, so another one
        # follows before the end. No later request would show the loss of a partition's first or
        # last records. The first transaction of an attempt lasts 0.2 s, which is too short.
        young = request.kind == PRODUCE and begun.goes_on(request)
        return ErrorAnswer(WRITTEN) if young and armed.is_set() and slots.kept == before else PASS

    with proxied.job(tmp_path) as job:
        job.write(500, seed=10_000)
        slots.rule = rule
        with proxied.started(job, LONG) as run:
            with fed(job):
                run.until_published(1)
                armed.set()
                run.until(lambda: OUT_OF_ORDER in slots.produce_errors, "a hole", 60)
                run.until(lambda: len(job.claims()) > 1, "another attempt", 60)
                run.until_published(1)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.assert_exact()


def test_lost_produce_responses_cause_no_duplicates(
    proxied: ProxiedCluster, tmp_path: Path
) -> None:
    """The broker writes the records, and the connection ends before its answer. The producer
    repeats the request.
    """
    slots = proxied.slots
    produced = [0]

    def rule(request: Request) -> Reaction:
        if request.kind != PRODUCE:
            return PASS
        produced[0] += 1
        return LOSE if produced[0] % 5 == 0 and slots.lost < LOST else PASS

    with proxied.job(tmp_path) as job:
        job.write(500, seed=10_000)
        slots.rule = rule
        with proxied.started(job) as run:
            with fed(job):
                run.until(lambda: slots.lost == LOST, "lost answers", 60)
                run.until_published(2)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.assert_exact()


def test_transactions_end_although_responses_to_their_markers_are_lost(
    proxied: ProxiedCluster, tmp_path: Path
) -> None:
    """KAFKA-19999: the partition's leader refuses a repeated marker of a coordinator for ever. The
    transaction then stays in PrepareCommit or PrepareAbort.
    """
    itself = proxied.itself
    markers = [0]

    def rule(request: Request) -> Reaction:
        if request.kind != WRITE_TXN_MARKERS:
            return PASS
        markers[0] += 1
        return LOSE if markers[0] % 3 == 0 and itself.lost < 2 * LOST else PASS

    with proxied.job(tmp_path) as job:
        job.write(500, seed=10_000)
        itself.rule = rule
        with job.started(pace=PACE) as run:
            with fed(job):
                run.until(lambda: itself.lost == LOST, "lost answers", 60)
                kill_a_slot(run)  # its open transactions are aborted, which also needs markers
                run.until_published(2)
            run.until(job.is_settled, "settled", 120)
            run.kill()
        job.assert_exact()
