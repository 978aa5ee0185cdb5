"""Write a new generation of golden storages with the code of today: `make golden`.

Each is written by the command that users have, on a real broker that this process starts: a job is
stopped, or killed where its storage is at its worst. Then the same job reads the rest, and what it
has written and kept by then is what a restore must come to.

`make golden CASE=event-times` adds the storages of one case to the newest generation, while what is
stored has the form of that generation.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from confluent_kafka import Message

from integration.agreement.inputs import PARTITIONS, Dataset, _write
from integration.agreement.outcome import manifests, state_of
from integration.agreement.runs import NO_DRAIN, CaseJob
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Run
from integration.support.backfills import BackfillJob
from integration.support.brokers import create_topic, read_all
from integration.support.running import ROOT
from tests.golden.cases import EVENT_TIMES, case_of
from tests.golden.event_time import (
    ALL_VISITS,
    STEADY_FROM,
    STEADY_TO,
    STORED_WATERMARK_MS,
)
from tests.golden.formats import FORMATS, describe_formats
from tests.golden.stored_event_time import FORMS, TOMBSTONES, stored_forms
from tests.golden.world import (
    STORAGE,
    STORAGES,
    WORLD,
    Due,
    Sink,
    Source,
    StoredMessage,
    Transaction,
    World,
)
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.inspection import KafkaTransactionInspector
from tidegate.errors import CorruptCheckpointError
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import Uid
from tidegate.ports.inspection import no_progress
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import TopicPartition

RECORDS: Final = 300
PUBLISHED: Final = 7
"""Checkpoints before a storage is taken: enough for files of changes in addition to a full one."""
WAIT_S: Final = 90.0
UNSETTLED: Final = Trap("jobmaster.published", nth=PUBLISHED, holds=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A storage to write."""

    case: str
    how: str
    """`stopped`; `killed`; `unsettled`: killed behind a publication whose transactions are open;
    `backfill`: in waves, and not finished."""
    backend: str = "rocksdb"
    parallelism: int = 2
    wave_offsets: int = RECORDS // 3
    pace: int = 20
    """Records a second of a source subtask: a storage is taken in the middle of the input."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.case}-{self.backend}-{self.how}"


GOLDEN: Final = (
    Golden(case="order-totals", how="stopped"),
    Golden(case="order-totals", how="unsettled", parallelism=1),
    Golden(case="order-totals", how="unsettled", parallelism=1, backend="memory"),
    Golden(case="order-totals", how="backfill"),
    Golden(case="click-dedup", how="killed"),
    Golden(case="payments-enriched", how="stopped", backend="memory"),
    Golden(case="same-records", how="killed"),
    # A subtask for each partition, so that all partitions are read equally fast.
    Golden(case="event-times", how="killed", parallelism=PARTITIONS, pace=10),
    Golden(case="event-times", how="stopped", parallelism=PARTITIONS, pace=10, backend="memory"),
    Golden(case="event-times", how="backfill", wave_offsets=ALL_VISITS // 2),
)
SIZES: Final = {"accounts": 30, "visits": ALL_VISITS, "events": 120, "entries": 90}
"""Sizes of inputs that do not have `RECORDS` records."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.make", description=__doc__)
    parser.add_argument("--into", type=Path, default=None, help="a folder for the generation")
    parser.add_argument(
        "--case",
        choices=sorted({each.case for each in GOLDEN}),
        help="a case to add to a generation",
    )
    given = parser.parse_args()
    target = given.into or _generation(0 if given.case else 1)
    if given.case and (target / FORMATS).read_text(encoding="utf-8") != describe_formats():
        parser.error(f"what is stored has another form than in {target}. Write a new generation")
    with _folder() as folder, _broker(folder) as kafka:
        for golden in GOLDEN:
            if given.case not in (None, golden.case):
                continue
            print(f"{target.name}/{golden.name}", flush=True)
            place = folder / golden.name
            place.mkdir()
            _Maker(golden, kafka.bootstrap, place).write(target / golden.name)
    (target / FORMATS).write_text(describe_formats(), encoding="utf-8")
    return 0


def _generation(behind_newest: int) -> Path:
    known = [int(path.name) for path in STORAGES.iterdir() if path.name.isdecimal()]
    return STORAGES / str(max(known, default=0) + behind_newest)


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder with a name that does not change, because stored submissions have it in them."""
    folder = Path(tempfile.gettempdir(), "tidegate-golden")
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def _broker(folder: Path) -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start("4.3.0", directory=folder / "kafka", owned=True) as kafka:
        yield kafka


class _Maker:
    """Writes one storage."""

    def __init__(self, golden: Golden, bootstrap: str, folder: Path) -> None:
        self._golden, self._bootstrap, self._folder = golden, bootstrap, folder
        self._storage = folder / ".tidegate" / "checkpoints"
        case = case_of(golden.case)
        self._source_topics = {name: f"{golden.name}-{name}" for name in case.inputs}
        graph = _graph(golden)
        sinks = [node.id for node in graph if node.kind == "sink"]
        self._sink_topics = {name: f"{golden.name}-{name}" for name in sinks}
        self._graph = graph
        self._job = CaseJob(
            bootstrap,
            folder,
            "",
            name=golden.name,
            topics={**self._source_topics, **self._sink_topics},
            source_names=tuple(self._source_topics),
            sink_names=tuple(self._sink_topics),
        )
        for name, dataset in case.inputs.items():
            size = SIZES.get(name, RECORDS)
            topic = self._source_topics[name]
            create_topic(bootstrap, topic, partitions=PARTITIONS)
            _write(bootstrap, topic, Dataset(dataset.records, size).all())
        for topic in self._sink_topics.values():
            create_topic(bootstrap, topic, partitions=PARTITIONS)
        shutil.copytree(ROOT / "schemas", folder / "schemas")
        pipeline = case.pipeline
        folder.joinpath("job.py").write_text(
            f"from {pipeline.__module__} import {pipeline.__name__}\n\n\n"
            f'class Job({pipeline.__name__}, name="{golden.name}"):\n'
            '    """A job with a name of its own."""\n'
        )

    def write(self, target: Path) -> None:
        """Run, take the storage, run to the end, take what is due."""
        if self._golden.how == "backfill":
            self._backfill()
        else:
            self._live()
        target.mkdir(parents=True)
        shutil.copytree(self._storage, target / STORAGE)
        sources = {name: self._source(name, topic) for name, topic in self._source_topics.items()}
        inspector = KafkaTransactionInspector({"bootstrap.servers": self._bootstrap})
        sinks = {name: self._sink(topic, inspector) for name, topic in self._sink_topics.items()}
        transactions = self._transactions(inspector)
        self._check_something_is_left()
        if self._golden.case == EVENT_TIMES.name:
            self._check_forms()
        cluster_id = inspector.cluster_id()
        inspector.close()
        self._job.run(NO_DRAIN, config=self._config())
        World(
            tidegate_version=metadata.version("tidegate"),
            case=self._golden.case,
            job=self._golden.name,
            backend=self._golden.backend,
            parallelism=self._golden.parallelism,
            cluster_id=cluster_id,
            partitions=PARTITIONS,
            sources=sources,
            sinks=sinks,
            transactions=transactions,
            due=self._due(),
        ).write(target / WORLD)

    def _config(self) -> dict[str, str]:
        return {"state.backend": self._golden.backend, "checkpoint.interval": "100 ms"}

    def _live(self) -> None:
        unsettled = self._golden.how == "unsettled"
        traps = [UNSETTLED] if unsettled else []
        with self._job.started(
            traps=traps,
            pace=self._golden.pace,
            config=self._config(),
            parallelism=self._golden.parallelism,
        ) as run:
            run.until(self._reached(run, unsettled=unsettled), "at its worst", WAIT_S)
            if self._golden.how == "stopped":
                run.process.send_signal(signal.SIGINT)
                assert run.wait() == 0, run.story()
            else:
                run.kill()

    def _reached(self, run: Run, *, unsettled: bool) -> Callable[[], object]:
        if unsettled:
            return lambda: run.plan.pid(0)
        if self._golden.case == EVENT_TIMES.name:
            return self._is_steady
        return lambda: run.publications() >= PUBLISHED

    def _is_steady(self) -> bool:
        """Return whether a checkpoint has the watermarks that do not move until the input ends."""
        with suppress(FileNotFoundError, CorruptCheckpointError):  # a file was just deleted
            newest = manifests(self._storage / self._golden.name)[-1:]
            splits = [split for manifest in newest for split in manifest.splits]
            return {split.watermark_ms for split in splits} == {STORED_WATERMARK_MS}
        return False

    def _backfill(self) -> None:
        sys.modules.pop("job", None)  # the module of the backfill before, in another folder
        job = BackfillJob(
            "job:Job",
            self._folder,
            {
                "checkpoint.dir": str(self._storage),
                "kafka.bootstrap_servers": self._bootstrap,
                "state.backend": self._golden.backend,
                **{f"sources.{name}.topic": t for name, t in self._source_topics.items()},
                **{f"sinks.{name}.topic": t for name, t in self._sink_topics.items()},
            },
        )
        driver, waves = job.driver(
            parallelism=self._golden.parallelism, wave_offsets=self._golden.wave_offsets
        )
        assert not driver.run(stop=lambda: bool(waves))

    def _check_forms(self) -> None:
        manifest = manifests(self._storage / self._golden.name)[-1]
        assert all(STEADY_FROM <= split.offset <= STEADY_TO for split in manifest.splits), manifest
        wanted = FORMS - ({TOMBSTONES} if self._golden.how == "backfill" else set())
        assert stored_forms(manifest, self._storage) == wanted, "a form is missing; try again"

    def _check_something_is_left(self) -> None:
        splits = manifests(self._storage / self._golden.name)[-1].splits
        read = sum(split.offset for split in splits)
        sizes = [SIZES.get(name, RECORDS) for name in self._source_topics]
        assert read < sum(sizes) * 0.8, "too little of the input is left; try again"

    # --- what is in Kafka -----------------------------------------------------------------------

    def _source(self, name: str, topic: str) -> Source:
        splits = manifests(self._storage / self._golden.name)[-1].splits
        ids = {split.topic_id for split in splits if split.source == name}
        (topic_id,) = ids
        return Source(
            topic=topic, topic_id=topic_id, records=_stored(read_all(self._bootstrap, topic))
        )

    def _sink(self, topic: str, inspector: KafkaTransactionInspector) -> Sink:
        leaders = inspector.partitions(topic)
        open_on = inspector.open_transactions(leaders, progress=no_progress).producers
        stable = {
            topic_partition.partition: end_offsets.stable
            for topic_partition, end_offsets in inspector.end_offsets(leaders).items()
        }
        found: list[tuple[int, StoredMessage]] = []
        for message in read_all(self._bootstrap, topic, isolation="read_uncommitted"):
            partition, offset = message.partition() or 0, message.offset() or 0
            if offset >= stable[partition]:
                writers = open_on[TopicPartition(topic, partition)]
                # A subtask writes one transaction after the other, and there is one subtask.
                writer = max(
                    (each for each in writers if each.start_offset <= offset),
                    key=lambda each: each.start_offset,
                )
                found.append((writer.producer_id, _stored([message])[0]))
        return Sink(topic=topic, committed=_stored(read_all(self._bootstrap, topic)), open=found)

    def _transactions(self, inspector: KafkaTransactionInspector) -> list[Transaction]:
        find_transactions = inspector.find_transactions(
            prefix=f"tidegate.{self._golden.name}.", progress=no_progress
        )
        found = [
            Transaction(
                id=each.transactional_id,
                state=each.state,
                producer_id=each.producer_id,
                epoch=each.epoch,
                start_ms=each.start_ms,
                partitions=[
                    (topic_partition.topic, topic_partition.partition)
                    for topic_partition in each.partitions
                    if each.state is TransactionState.ONGOING
                ],
            )
            for each in find_transactions.transactions
        ]
        is_open = any(each.state is TransactionState.ONGOING for each in found)
        assert is_open or self._golden.how != "unsettled", "no transaction is open"
        return sorted(found, key=lambda each: each.id)

    def _due(self) -> Due:
        manifest = manifests(self._storage / self._golden.name)[-1]
        return Due(
            messages={
                name: _stored(read_all(self._bootstrap, topic))
                for name, topic in self._sink_topics.items()
            },
            state={
                node.id: sorted(state_of(manifest, self._storage, Uid(node.id)).items())
                for node in self._graph
                if operator_kind(node.kind).keyed
            },
            positions=[
                (split.source, split.topic, split.partition, split.offset)
                for split in manifest.splits
            ],
        )


def _graph(golden: Golden) -> StreamGraph:
    import types

    from tidegate import build

    return build(types.new_class("Job", (case_of(golden.case).pipeline,), {"name": golden.name}))


def _stored(messages: list[Message]) -> list[StoredMessage]:
    return [
        StoredMessage(
            message.partition() or 0,
            message.key(),
            message.value(),
            [*(message.headers() or [])],
            message.timestamp()[1],
        )
        for message in sorted(messages, key=lambda each: (each.partition(), each.offset()))
    ]


if __name__ == "__main__":
    sys.exit(main())
