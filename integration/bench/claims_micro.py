"""Measures the duration of a claim while the brokers remember transactional ids of many waves.

A backfill of 1,000 waves with 200 receivers and three sinks leaves 600,000 ids. The brokers keep
these ids for a week. So many real transactions would take an hour. Therefore this module writes
only their records in the topic `__transaction_state`, one for each committed transaction. Kafka
accepts such records from a client that has the client id of Kafka's admin tools, and a broker reads
them when it restarts. Then a real backfill runs waves, and its claims are timed.

The first claim of a command asks Kafka about the claim id, to find out whether the journal has lost
its end. If the claim id proves nothing, the claim lists all ids; the table has the time of such a
list. The fencing lists only the ids whose transaction is not complete.
"""

from __future__ import annotations

import statistics
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import Producer

from integration.bench.cost import Rig
from integration.bench.page import Table
from integration.bench.spark_cost import judged, write_module
from integration.support.backfills import BackfillJob, in_process_host
from tidegate.backfill.driver import Backfill, WaveCompleted
from tidegate.backfill.executor import InProcessExecutor
from tidegate.commit.transactional_ids import job_prefix, parse_transactional_id
from tidegate.controlplane.journal.job_journal import JobJournal
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import Attempt, JobName, SubtaskIndex, Uid

STATE_TOPIC: Final = "__transaction_state"
PARTITIONS: Final = 4
"""Partitions of that topic on an embedded broker."""
ADMIN_CLIENT: Final = "__admin_client"
COMPLETE_COMMIT: Final = 4
TIMEOUT_MS: Final = 60_000
RECEIVERS, SINKS = 200, 3
IDS: Final = (0, 60_000, 200_000, 600_000)
WAVES: Final = 5
"""Number of waves that one command runs."""
WAVE_OFFSETS: Final = 40
TIMEOUT_S: Final = 120.0
GOAL_S: Final = 2.0


TITLES: Final = (
    "complete ids",
    "list of all ids s",
    "first claim s",
    "later, median s",
    "later, largest s",
)


def measure_claims(
    rig: Rig, broker: EmbeddedKafka, counts: Sequence[int], tell: Callable[[str], None]
) -> Table:
    """Measure claims by the number of complete ids of the job. This restarts the broker."""
    sink, folder = rig.fresh("claims")
    job = BackfillJob(
        write_module(folder, "Totals"),
        folder,
        {
            "kafka.bootstrap_servers": rig.bootstrap,
            "sources.clicks.topic": "bench-small",
            "sinks.totals.topic": sink,
        },
    )
    drivers = SystemDrivers()
    config = job.config(job__parallelism=1)
    submission = job.submission(config)
    executor = InProcessExecutor(in_process_host(drivers))
    rows, claims, made = [], list[tuple[float, float, float]](), 0
    with _timed_recoveries() as seconds:
        for count in counts:
            if count > made:
                write_complete_ids(rig.bootstrap, submission.job, range(made, count), tell)
                broker.restart()
                made = count
            _wait_until_known(rig.bootstrap, submission.job, count)
            list_s = _list_seconds(rig.bootstrap, submission.job)
            seconds.clear()
            waves: list[WaveCompleted] = []
            Backfill(
                *(submission, config, drivers, executor),
                wave_offsets=WAVE_OFFSETS,
                on_wave=waves.append,
            ).run(stop=partial(_are_enough, waves))
            first_s, later_s = seconds[0], seconds[1:]
            claims.append((list_s, first_s, max(later_s)))
            tell(f"{count:,} ids: first claim {first_s:.2f} s, later at most {max(later_s):.2f} s")
            median_s = statistics.median(later_s)
            seconds_shown = (list_s, first_s, median_s, max(later_s))
            rows.append([f"{count:,}", *(f"{each:.2f}" for each in seconds_shown)])
    return Table("Waves: claims", TITLES, rows, _note(claims))


def _are_enough(waves: Sequence[WaveCompleted]) -> bool:
    return len(waves) >= WAVES


def _note(claims: Sequence[tuple[float, float, float]]) -> str:
    (list_s, first_s, later_s), first_without_s = claims[-1], claims[0][1]
    return (
        "A claim includes all work before a wave: the claim, the recovery, the fencing and the "
        f"restore point. Later claims: {judged(later_s < GOAL_S, 'below 2 s and flat')}. The first "
        f"claim of a command took {first_s:.2f} s, and {first_without_s:.2f} s without any ids: "
        f"{judged(first_s < GOAL_S, 'below 2 s')}. It makes no list of all ids, because the claim "
        f"id proves that no attempt is missing. Such a list took {list_s:.2f} s. "
        f"1,000 waves with {RECEIVERS} receivers and {SINKS} sinks leave {IDS[-1]:,} ids."
    )


def write_complete_ids(
    bootstrap: str, job: JobName, numbers: Iterable[int], tell: Callable[[str], None]
) -> None:
    """Write the records that committed transactions of the job leave in the broker.

    The broker reads them when it restarts. The ids are those of the first attempt, so that no
    attempt seems to be missing.
    """
    parts = next(filter(None, map(parse_transactional_id, _ids(bootstrap, job))))
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": ADMIN_CLIENT,
            "queue.buffering.max.messages": 1_000_000,
            "linger.ms": 20,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
        }
    )
    now_ms = int(time.time() * 1000)
    for number in numbers:
        sink, subtask = divmod(number % (SINKS * RECEIVERS), RECEIVERS)
        one = replace(
            parts,
            sink=Uid(f"sink-{sink}"),
            attempt=Attempt(1),
            subtask=SubtaskIndex(subtask),
            index=1_000 + number // (SINKS * RECEIVERS),
        )
        key, value = state_record(str(one), 1_000_000 + number, now_ms)
        producer.produce(STATE_TOPIC, value, key, partition=state_partition(str(one)))
        producer.poll(0)
    if producer.flush(TIMEOUT_S) or failures:
        message = f"The ids could not be written: {failures[:1]}"
        raise RuntimeError(message)
    tell(f"{number + 1:,} complete ids are written.")


def state_record(transactional_id: str, producer_id: int, now_ms: int) -> tuple[bytes, bytes]:
    """Return the key and value of a committed transaction in Kafka's state topic (version 0)."""
    name = transactional_id.encode()
    no_partitions = 0
    value = struct.pack(
        ">hqhibiqq",
        *(0, producer_id, 0, TIMEOUT_MS, COMPLETE_COMMIT, no_partitions, now_ms, now_ms),
    )
    return struct.pack(">hh", 0, len(name)) + name, value


def state_partition(transactional_id: str, partitions: int = PARTITIONS) -> int:
    """Return the partition in which Kafka keeps an id. It follows from Java's hash of a string."""
    hash_ = 0
    for letter in transactional_id.encode():
        hash_ = (31 * hash_ + letter) & 0xFFFFFFFF
    return (hash_ & 0x7FFFFFFF) % partitions


def _wait_until_known(bootstrap: str, job: JobName, count: int) -> None:
    """Wait until a broker that has just started has read its state."""
    end_s = time.monotonic() + TIMEOUT_S
    while (known := len(_ids(bootstrap, job))) < count:
        if time.monotonic() > end_s:
            message = f"The broker knows only {known} of {count} ids."
            raise RuntimeError(message)
        time.sleep(1)


def _ids(bootstrap: str, job: JobName) -> list[str]:
    log = KafkaTransactionAdmin({"bootstrap.servers": bootstrap}, deadline_s=TIMEOUT_S)
    try:
        return list(log.list(job_prefix(job)))
    finally:
        log.close()


def _list_seconds(bootstrap: str, job: JobName) -> float:
    """Return the duration of one listing of all ids, with a new connection."""
    began_s = time.monotonic()
    _ids(bootstrap, job)
    return time.monotonic() - began_s


@contextmanager
def _timed_recoveries() -> Iterator[list[float]]:
    """Collect the seconds of each recovery, including the claim, while the block runs."""
    seconds: list[float] = []
    real = JobJournal.recover

    def timed(*arguments: Any) -> RecoveredJob:
        began_s = time.monotonic()
        recovered = real(*arguments)
        seconds.append(time.monotonic() - began_s)
        return recovered

    JobJournal.recover = timed  # type: ignore[method-assign,assignment]
    try:
        yield seconds
    finally:
        JobJournal.recover = real  # type: ignore[method-assign]
