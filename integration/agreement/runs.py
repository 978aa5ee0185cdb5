"""The ways to run a case: live with kills, bounded, at two parallelisms, and as a backfill.

Each run is a job of its own with its own sink topics. All runs read the same source topics. The
live and the bounded run use the command that users have, with real processes.
"""

from __future__ import annotations

import shutil
import signal
import types
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, Message, TopicPartition

from integration.agreement.cases import Case
from integration.agreement.inputs import PARTITIONS, Log, write_topic
from integration.agreement.outcome import Outcome, manifests, read_sinks, take_outcome
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import Job
from integration.support.backfills import BackfillJob
from integration.support.brokers import TIMEOUT_S, create_topic, read_all, unique
from integration.support.running import ROOT
from tidegate import build
from tidegate.backfill.driver import WaveCompleted
from tidegate.backfill.executor import Executor
from tidegate.graph.stream_graph import StreamGraph

KILLS: Final = (Trap("slot.wrote", nth=4), Trap("jobmaster.published"), Trap("slot.described"))
"""The kills of a live run: a slot while it writes, a JobMaster after the commit point, and a slot
at a barrier.
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
        kills = KILLS_WITHOUT_OUTPUT if self.case.text else KILLS
        with job.started(
            traps=kills, pace=pace, config={"state.backend": backend}, parallelism=parallelism
        ) as run:
            run.until(lambda: run.plan.pid(len(kills) - 1), "killed", LIVE_S_MAX)
            run.until(lambda: self._has_read(job, ends), "at the ends", LIVE_S_MAX)
            run.process.send_signal(signal.SIGINT)
            code = run.wait()
            assert code == 0, run.story()
        return self._outcome(f"a live run ({backend})", job, backend, lossy=True)

    def rescaled(self, backend: str, parallelisms: tuple[int, int]) -> Outcome:
        """Run `tidegate run` with the first parallelism, stop it in the middle, and continue with a
        bounded run with the second one. Return its outcome.
        """
        job = self._job()
        ends = self.ends()
        before, after = parallelisms
        pace = max(PACE_MIN, sum(ends.values()) // (before * READING_S))
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
        module = name.replace("-", "_")
        for file in (module, "job"):  # a folder is imported once, and a command runs `job`
            self._write_module(folder / f"{file}.py", name)
        settings = {
            "kafka.bootstrap_servers": self.bootstrap,
            "state.backend": backend,
            **self._topic_settings(sinks),
        }
        job = BackfillJob(f"{module}:Job", folder, settings)
        waves = job.backfill(parallelism=parallelism, wave_offsets=wave_offsets, executor=executor)
        how = f"a backfill ({backend}, {parallelism} subtasks, {wave_offsets} offsets a wave)"
        outcome = take_outcome(how, self.graph(name), folder / "checkpoints", self.bootstrap, sinks)
        places = {"checkpoint.dir": "checkpoints", "state.local_dir": "state", "logs.dir": "logs"}
        config = {key: str(folder / path) for key, path in places.items()}
        drained = self._drained(self._case_job(name, folder, sinks), backend, config)
        return replace(outcome, drained=drained), waves

    def ends(self) -> dict[tuple[str, str, int], int]:
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
        found = manifests(job.folder / ".tidegate" / "checkpoints" / job.name)
        read = {
            split.source for manifest in found[-1:] for split in manifest.splits if split.offset
        }
        return read == set(self.topics)

    def _has_read(self, job: Job, ends: Mapping[tuple[str, str, int], int]) -> bool:
        with suppress(FileNotFoundError):  # the file was just deleted
            found = manifests(job.folder / ".tidegate" / "checkpoints" / job.name)
            reached = {
                (split.source, split.topic, split.partition): split.offset
                for manifest in found[-1:]
                for split in manifest.splits
            }
            return reached == ends
        return False

    def _job(self) -> CaseJob:
        name, folder, sinks = self._place()
        self._write_module(folder / "job.py", name)
        return self._case_job(name, folder, sinks)

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

    def _outcome(self, how: str, job: CaseJob, backend: str, *, lossy: bool = False) -> Outcome:
        storage = job.folder / ".tidegate" / "checkpoints"
        sinks = {sink: job.topics[sink] for sink in job.sinks}
        graph = self.graph(job.name)
        outcome = take_outcome(how, graph, storage, self.bootstrap, sinks, lossy=lossy)
        return replace(outcome, drained=self._drained(job, backend, {}))

    def _drained(
        self, job: CaseJob, backend: str, config: Mapping[str, str]
    ) -> dict[str, list[Message]]:
        """Drain a drawn pipeline by one more run, and return the records of its sinks."""
        if not self.case.text:
            return {}
        job.run(config={"state.backend": backend, **config}, parallelism=DRAINING)
        return read_sinks(self.bootstrap, {sink: job.topics[sink] for sink in job.sinks})
