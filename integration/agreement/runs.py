"""The ways to run a case: live with kills, bounded, at two parallelisms, and as a backfill. A drawn
pipeline also runs as a backfill that a live run and a second backfill continue.

Each run is a job of its own with its own sink topics. All runs read the same source topics. The
live and the bounded run use the command that users have, with real processes.
"""

from __future__ import annotations

import shutil
import signal
import types
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Message, TopicPartition

from integration.agreement.cases import Case
from integration.agreement.drawn.hand_overs import HandOver
from integration.agreement.inputs import PARTITIONS, Log, write_topic
from integration.agreement.outcome import (
    Outcome,
    manifests,
    read_sinks,
    read_states,
    take_outcome,
)
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job, Run
from integration.support.backfill_process import DriverArguments, killed_driver
from integration.support.backfills import BackfillJob
from integration.support.brokers import TIMEOUT_S, create_topic, read_all, unique
from integration.support.running import ROOT
from tidegate import build
from tidegate.backfill.driver import WaveCompleted
from tidegate.backfill.executor import Executor
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import Uid
from tidegate.protocol.submission import PartitionEnd

KILLS: Final = (Trap("slot.wrote", nth=4), Trap("jobmaster.published"), Trap("slot.described"))
"""The kills of a live run: a slot while it writes, a JobMaster after the commit point, and a slot
at a barrier.
"""
KILLS_OF_EVENT_TIME: Final = (*KILLS[:2], Trap("slot.uploaded"))
"""The same for a case with event time. All of its windows may have fired before the last kill, and
then no slot has a transaction to describe.
"""
KILLS_WITHOUT_OUTPUT: Final = (Trap("slot.uploaded", nth=4), Trap("jobmaster.manifest", nth=3))
"""The kills of a drawn pipeline. It may write nothing before it drains, because a silent partition
holds the watermark.
"""
PACE_MIN: Final = 250
"""The least number of records that a source subtask reads per second in a live run. It is low, so
that the run has several checkpoints to interrupt.
"""
READING_S: Final = 4
"""Approximate duration of a live run in seconds, if its input is large."""
LIVE_S_MAX: Final = 90.0
DRAINING: Final = 3
"""Parallelism of the run that drains a drawn pipeline. It differs from that of most runs."""
NO_DRAIN: Final = "--no-drain"
"""A bounded run leaves open what a live run and a backfill leave open."""
SLOW_PACE_MIN: Final = 20
"""The least number of records that a source subtask reads per second in a live run that stops in
the middle. A slow machine sees the middle late.
"""

Ends = dict[tuple[str, str, int], int]
"""Offsets by source, topic and partition."""
KilledDriver = Callable[[DriverArguments, Trap], None]
"""Starts a driver of a backfill, which is killed at a trap."""


@dataclass(slots=True)
class CaseJob(Job):
    """A job of a case, for `tidegate run`."""

    source_names: tuple[str, ...] = ()
    sink_names: tuple[str, ...] = ()

    @property
    def sources(self) -> tuple[str, ...]:
        return self.source_names

    @property
    def sinks(self) -> tuple[str, ...]:
        return self.sink_names


@dataclass(slots=True)
class Prepared:
    """A case whose topics are written."""

    case: Case
    bootstrap: str
    topics: dict[str, str]
    """Topics by source."""
    folder: Path
    inputs: dict[str, list[Message]]
    """Records of the topics, by source."""
    references: dict[str, Outcome] = field(default_factory=dict)
    """Outcomes of bounded runs by backend. Each bounded run is made once."""

    @classmethod
    def make(cls, case: Case, log: Log, bootstrap: str, folder: Path) -> Prepared:
        """Write the input of the sources."""
        topics = {
            source: write_topic(bootstrap, dataset, log) for source, dataset in case.inputs.items()
        }
        inputs = {source: read_all(bootstrap, topic) for source, topic in topics.items()}
        return cls(case, bootstrap, topics, folder, inputs)

    def graph(self, name: str = "named") -> StreamGraph:
        """Return the graph of a job of that name."""
        return build(types.new_class("Job", (self.case.pipeline,), {"name": name}))

    def bounded(self, backend: str = "rocksdb", parallelism: int = 2) -> Outcome:
        """Run `tidegate run --bounded` once for each backend, and return its outcome, the
        reference.
        """
        if backend not in self.references:
            job = self._job()
            job.run(NO_DRAIN, config={"state.backend": backend}, parallelism=parallelism)
            self.references[backend] = self._outcome(f"a bounded run ({backend})", job, backend)
        return self.references[backend]

    def live(self, backend: str = "rocksdb", parallelism: int = 2) -> Outcome:
        """Run `tidegate run` with kills, and stop it when it has read everything. Return its
        outcome.
        """
        job = self._job()
        ends = self.ends()
        pace = max(PACE_MIN, sum(ends.values()) // (parallelism * READING_S))
        with job.started(
            traps=self._kills(),
            pace=pace,
            config={"state.backend": backend},
            parallelism=parallelism,
        ) as run:
            self._stop_after_kills(run, lambda: self._has_read(job, ends))
        return self._outcome(f"a live run ({backend})", job, backend, lossy=True)

    def _kills(self) -> tuple[Trap, ...]:
        if self.case.text:
            return KILLS_WITHOUT_OUTPUT
        return KILLS_OF_EVENT_TIME if self.case.rescales else KILLS

    def rescaled(self, backend: str, parallelisms: tuple[int, int]) -> Outcome:
        """Run `tidegate run` with the first parallelism, stop it in the middle, and continue with a
        bounded run with the second one. Return its outcome.
        """
        job = self._job()
        ends = self.ends()
        before, after = parallelisms
        pace = max(SLOW_PACE_MIN, sum(ends.values()) // (before * 2 * READING_S))
        config = {"state.backend": backend}
        with job.started(pace=pace, config=config, parallelism=before) as run:
            run.until(lambda: self._has_begun(job), "in the middle", LIVE_S_MAX)
            run.process.send_signal(signal.SIGINT)
            code = run.wait()
            assert code == 0, run.story()
        assert not self._has_read(job, ends), "the run was stopped too late"
        job.run(NO_DRAIN, config=config, parallelism=after)
        how = f"a run rescaled from {before} to {after} ({backend})"
        return self._outcome(how, job, backend)

    def backfill(
        self,
        *,
        parallelism: int,
        wave_offsets: int,
        backend: str = "rocksdb",
        executor: Executor | None = None,
    ) -> tuple[Outcome, list[WaveCompleted]]:
        """Run a backfill from the beginning, and return its outcome and its waves."""
        name, folder, sinks = self._place()
        job = self._backfill_job(name, folder, sinks, backend)
        waves = job.backfill(parallelism=parallelism, wave_offsets=wave_offsets, executor=executor)
        how = f"a backfill ({backend}, {parallelism} subtasks, {wave_offsets} offsets a wave)"
        return self._outcome(how, self._case_job(name, folder, sinks), backend), waves

    def handed_over(
        self,
        hand_over: HandOver,
        backend: str,
        *,
        executor: Executor | None = None,
        kill: KilledDriver = killed_driver,
    ) -> Outcome:
        """Run a backfill to the middle, whose first driver is killed. Continue it with a live run
        with kills, and that with a second backfill to the ends. Return the outcome.
        """
        name, folder, sinks = self._place()
        backfill = self._backfill_job(name, folder, sinks, backend)
        job = self._case_job(name, folder, sinks)
        first, second, live, last = hand_over.parallelisms
        ends = self.ends()
        middle = {place: int(end * hand_over.shares[place[2]]) for place, end in ends.items()}
        arguments = DriverArguments(
            reference=backfill.reference,
            folder=str(folder),
            settings=backfill.settings,
            parallelism=first,
            wave_offsets=sum(middle.values()) // hand_over.waves + 1,
            ends=tuple(
                PartitionEnd(source=Uid(source), topic=topic, partition=partition, offset=offset)
                for (source, topic, partition), offset in middle.items()
            ),
        )
        kill(arguments, hand_over.kill)
        waves = backfill.backfill(
            parallelism=second,
            wave_offsets=arguments.wave_offsets,
            ends=arguments.ends,
            executor=executor,
        )
        assert waves, "the driver was killed too late"
        assert self._reached(job) == middle
        self._assert_open(job)
        self._continue_live(job, backend, live, middle)
        left = sum(ends.values()) - sum(self._reached(job).values())
        backfill.backfill(
            parallelism=last, wave_offsets=left // hand_over.waves + 1, executor=executor
        )
        assert self._reached(job) == ends
        return self._outcome(f"a backfill, handed over: {hand_over} ({backend})", job, backend)

    def _assert_open(self, job: CaseJob) -> None:
        """Assert that a step has state at the hand-over, so that a window or a timer is open."""
        storage = self._storage(job)
        state = read_states(manifests(storage / job.name)[-1], storage, self.graph(job.name))
        assert any(state.values()), "nothing is open at the hand-over"

    def _continue_live(self, job: CaseJob, backend: str, parallelism: int, middle: Ends) -> None:
        """Continue a backfill with a live run with kills. Stop it behind the middle of each
        source.
        """
        left = sum(self.ends().values()) - sum(middle.values())
        pace = max(SLOW_PACE_MIN, left // (parallelism * READING_S))
        with job.started(
            traps=KILLS_WITHOUT_OUTPUT,
            pace=pace,
            config={"state.backend": backend},
            parallelism=parallelism,
        ) as run:
            self._stop_after_kills(run, lambda: self._is_behind(job, middle))

    def _stop_after_kills(self, run: Run, has_read: Callable[[], bool]) -> None:
        """Stop a run that has read enough, and has continued after its last kill. A run that is
        stopped while it recovers takes no checkpoint.
        """
        last = len(run.plan.traps) - 1
        run.until(lambda: run.plan.pid(last), "killed", LIVE_S_MAX)
        run.until_published(1)
        run.until(has_read, "read enough", LIVE_S_MAX)
        run.process.send_signal(signal.SIGINT)
        code = run.wait()
        assert code == 0, run.story()

    def _is_behind(self, job: CaseJob, middle: Ends) -> bool:
        """Return whether a checkpoint of a live run is behind the middle in every source."""
        reached = self._reached(job)
        moved = {place[0] for place, offset in reached.items() if offset > middle[place]}
        return moved == set(self.topics)

    def ends(self) -> Ends:
        """Return the end offset of each partition of each source."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "unused"}
        consumer = Consumer(settings)
        try:
            return {
                (source, topic, number): consumer.get_watermark_offsets(
                    TopicPartition(topic, number), TIMEOUT_S
                )[1]
                for source, topic in self.topics.items()
                for number in range(PARTITIONS)
            }
        finally:
            consumer.close()

    def _has_begun(self, job: Job) -> bool:
        """Return whether a checkpoint has positions behind the beginning in every source."""
        return {place[0] for place, offset in self._reached(job).items() if offset} == set(
            self.topics
        )

    def _has_read(self, job: Job, ends: Ends) -> bool:
        return self._reached(job) == ends

    def _reached(self, job: Job) -> Ends:
        """Return the offsets of the newest checkpoint. Return none before the first checkpoint, and
        if the file was just deleted.
        """
        with suppress(FileNotFoundError):
            return {
                (split.source, split.topic, split.partition): split.offset
                for manifest in manifests(self._storage(job) / job.name)[-1:]
                for split in manifest.splits
            }
        return {}

    def _job(self) -> CaseJob:
        name, folder, sinks = self._place()
        self._write_module(folder / "job.py", name)
        return self._case_job(name, folder, sinks)

    def _backfill_job(
        self, name: str, folder: Path, sinks: Mapping[str, str], backend: str
    ) -> BackfillJob:
        """Return a job for backfills. `tidegate run` in the same folder continues it."""
        module = name.replace("-", "_")
        for file in (module, "job"):  # a folder is imported once, and a command runs `job`
            self._write_module(folder / f"{file}.py", name)
        places = {"checkpoint.dir": "checkpoints", "state.local_dir": "state", "logs.dir": "logs"}
        settings = {
            "kafka.bootstrap_servers": self.bootstrap,
            "state.backend": backend,
            **{key: str(folder / ".tidegate" / path) for key, path in places.items()},
            **self._topic_settings(sinks),
        }
        return BackfillJob(f"{module}:Job", folder, settings)

    def _case_job(self, name: str, folder: Path, sinks: Mapping[str, str]) -> CaseJob:
        return CaseJob(
            self.bootstrap,
            folder,
            "",
            name=name,
            topics={**self.topics, **sinks},
            source_names=tuple(self.topics),
            sink_names=tuple(sinks),
        )

    def _place(self) -> tuple[str, Path, dict[str, str]]:
        """Return a job name, its new folder, and new topics for its sinks."""
        name = unique("agreeing")
        folder = self.folder / name
        folder.mkdir()
        shutil.copytree(ROOT / "schemas", folder / "schemas")
        sinks = {node.id: unique(node.id) for node in self.graph() if node.kind == "sink"}
        create = partial(create_topic, self.bootstrap, partitions=PARTITIONS)
        with ThreadPoolExecutor() as pool:
            list(pool.map(create, sinks.values()))
        return name, folder, sinks

    def _write_module(self, path: Path, name: str) -> None:
        pipeline = self.case.pipeline
        module = self.case.text or f"from {pipeline.__module__} import {pipeline.__name__}\n"
        path.write_text(
            f"{module}\n\n"
            f'class Job({pipeline.__name__}, name="{name}"):\n'
            '    """A job with a name of its own."""\n'
        )

    def _topic_settings(self, sinks: Mapping[str, str]) -> dict[str, str]:
        return {
            **{f"sources.{source}.topic": topic for source, topic in self.topics.items()},
            **{f"sinks.{sink}.topic": topic for sink, topic in sinks.items()},
        }

    def _storage(self, job: Job) -> Path:
        """Return the checkpoint storage of a job: that of a command without settings for it."""
        return job.folder / ".tidegate" / "checkpoints"

    def _outcome(self, how: str, job: CaseJob, backend: str, *, lossy: bool = False) -> Outcome:
        sinks = {sink: job.topics[sink] for sink in job.sinks}
        graph, storage = self.graph(job.name), self._storage(job)
        outcome = take_outcome(how, graph, storage, self.bootstrap, sinks, lossy=lossy)
        return replace(outcome, drained=self._drained(job, backend))

    def _drained(self, job: CaseJob, backend: str) -> dict[str, list[Message]]:
        """Drain a drawn pipeline by one more run, and return the records of its sinks."""
        if not self.case.text:
            return {}
        job.run(config={"state.backend": backend}, parallelism=DRAINING)
        return read_sinks(self.bootstrap, {sink: job.topics[sink] for sink in job.sinks})
