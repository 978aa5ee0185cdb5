"""Counts the requests that the broker gets, by their API, from a job and from its loop.

A broker of its own runs for this part, and writes each request that it has answered into its log.
That costs the broker CPU, so no CPU is measured here. The requests of a run are those between the
start and the end of its processes. So the start of a run is part of them, and the check of its
output is not.

The same log says how many batches of records the producers have sent, and how large they are. A
batch is what a request to produce has for one partition. For an idle job, the requests are counted
for some seconds.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import msgspec

from integration.bench.cost import KINDS, SECOND, Rig
from integration.bench.idle_cost import Case, cluster
from integration.bench.page import Table
from integration.bench.process_tree import measure
from integration.bench.workloads import CHECKED, WORKLOADS
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.java import Java

LOGGED: Final = "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=debug"
MARK: Final = "Completed request:"
REQUEST_WORKLOADS: Final = ("passthrough", "total")
IDLE: Final = (Case("1 s"), Case("100 ms"), Case("100 ms", rarer_when_idle=False))
PRODUCE: Final = "PRODUCE"


@dataclass(slots=True)
class Requests:
    """The requests that a broker has answered in some time."""

    count: Counter[str] = field(default_factory=Counter)
    """The number of requests by the name of their API."""
    batches: int = 0
    batch_bytes: int = 0

    def add(self, answered: dict[str, Any]) -> None:
        """Add a request, as Kafka logs it."""
        api = answered["requestHeader"]["requestApiKeyName"]
        self.count[api] += 1
        if api != PRODUCE:
            return
        for topic in answered["request"]["topicData"]:
            for partition in topic["partitionData"]:
                self.batches += 1
                self.batch_bytes += partition["recordsSizeInBytes"]

    @property
    def kb_a_batch(self) -> float:
        """The mean size of a batch in kB; 0 without any."""
        return self.batch_bytes / self.batches / 1000 if self.batches else 0.0


class RequestLog:
    """The log of a broker that writes each request. `taken` begins where it ended the last time."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, path.stat().st_size

    def taken(self) -> Requests:
        """Return the requests since the last call."""
        found = Requests()
        with self._path.open("rb") as log:
            log.seek(self._at)
            text = log.read()
        whole = text.rfind(b"\n") + 1
        self._at += whole
        for line in text[:whole].splitlines():
            _, mark, answered = line.partition(MARK.encode())
            if mark:
                found.add(msgspec.json.decode(answered))
        return found


def measure_requests(records: int, idle_s: float) -> Iterator[Table]:
    """Measure the table of the workloads, and that of an idle job."""
    with tempfile.TemporaryDirectory() as scratch, _logging_broker(Path(scratch)) as broker:
        rig = Rig(broker.bootstrap, Path(scratch), records, broker.pids)
        log = RequestLog(broker.log())
        found = {
            f"{name}, {kind}": requests_of(rig, log, kind, name)
            for name in REQUEST_WORKLOADS
            for kind in KINDS
        }
        yield workload_table(found, records)
        idle = {}
        for case in IDLE:
            with cluster(rig, case):
                log.taken()
                time.sleep(idle_s)
                idle[case.every] = log.taken()
        yield idle_table(idle, idle_s)


def requests_of(rig: Rig, log: RequestLog, kind: str, name: str) -> Requests:
    """Return the requests of one run, whose output was right."""
    workload = WORKLOADS[name]
    sink, folder = rig.fresh("requests")
    command = rig.command(kind, workload, "bench-in", sink, rig.count, SECOND)
    log.taken()
    usage = measure(command, folder, rig.environment(), rig.brokers)
    found = log.taken()
    rig.check_run(kind, workload, usage, folder)
    rig.check(workload, sink, rig.count)
    return found


def workload_table(found: dict[str, Requests], records: int) -> Table:
    """Return the table of the requests per million records."""
    millions = records / 1e6
    apis = sorted(set[str]().union(*(each.count for each in found.values())))
    rows = [
        [api, *(f"{each.count[api] / millions:,.0f}" for each in found.values())] for api in apis
    ]
    total = (f"{each.count.total() / millions:,.0f}" for each in found.values())
    rows.append(["all requests", *total])
    rows.append(["batches", *(f"{each.batches / millions:,.0f}" for each in found.values())])
    rows.append(["kB a batch", *(f"{each.kb_a_batch:.1f}" for each in found.values())])
    note = (
        "The numbers are requests per million records, of whole runs with their start. Commits and "
        f"checkpoints come every second. {CHECKED}"
    )
    return Table("Requests to the broker by workload", ("request", *found), rows, note)


def idle_table(found: dict[str, Requests], seconds: float) -> Table:
    """Return the table of the requests per second."""
    apis = sorted(set[str]().union(*(each.count for each in found.values())))
    rows = [[api, *(f"{each.count[api] / seconds:.1f}" for each in found.values())] for api in apis]
    rows.append(["all requests", *(f"{r.count.total() / seconds:.1f}" for r in found.values())])
    note = (
        "The numbers are requests per second. The job is a pass-through with two slots and no "
        f"records. It is counted for {seconds:g} s. Columns have the interval of its checkpoints."
    )
    return Table("Requests to the broker from an idle job", ("request", *found), rows, note)


@contextmanager
def _logging_broker(scratch: Path) -> Iterator[EmbeddedKafka]:
    """Start a broker that logs the requests that it has answered."""
    plain = Java.command

    def logging(self: Java, *words: str | Path, record: Path | None = None) -> list[str]:
        executable, *rest = plain(self, *words, record=record)
        return [executable, LOGGED, *rest]

    with (
        patch.object(Java, "command", logging),
        EmbeddedKafka.start(directory=scratch / "logging", owned=True) as broker,
    ):
        yield broker
