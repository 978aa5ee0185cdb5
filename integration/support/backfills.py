"""Shared code of the backfill tests: a job with its own topics, and its driver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.backfill.driver import Backfill, WaveCompleted, WaveLoop, run_in_turn
from tidegate.backfill.executor import Executor, InProcessExecutor
from tidegate.backfill.record import BackfillRecords
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.client.preflight import (
    RunOptions,
    class_settings,
    load_for_submit,
    make_submission,
)
from tidegate.dataplane.engine import IO_THREADS
from tidegate.dataplane.waves.level_task import TaskHost
from tidegate.drivers.system import SystemDrivers
from tidegate.protocol.submission import PartitionEnd, Submission


@dataclass(frozen=True, slots=True)
class BackfillJob:
    """A pipeline whose topics and folders belong to one test."""

    reference: str
    folder: Path
    settings: dict[str, Any]

    def config(self, **more: object) -> Config:
        """Return the job's configuration. `more` are settings, with `__` for the dots of a key."""
        given = {key.replace("__", "."): value for key, value in more.items()}
        pipeline = load_for_submit(self.reference, self.folder)
        return load(
            folder=self.folder,
            environment={},
            class_statement=class_settings(pipeline),
            command_line={
                "checkpoint.dir": str(self.folder / "checkpoints"),
                "state.local_dir": str(self.folder / "state"),
                "logs.dir": str(self.folder / "logs"),
                **self.settings,
                **given,
            },
        )

    def submission(self, config: Config, ends: tuple[PartitionEnd, ...] = ()) -> Submission:
        """Make a new submission, and write its code to the checkpoint storage. Without `ends`, it
        reads all records that are there when it begins.
        """
        pipeline = load_for_submit(self.reference, self.folder)
        options = RunOptions(params={}, bounded=True)
        made, _, archive = make_submission(self.reference, self.folder, pipeline, config, options)
        storage = SystemDrivers().blob_store(config.checkpoint.dir)
        return BackfillRecords(storage, made.job, config.to_dict()).begin(
            made, archive, ends, "now"
        )

    def backfill(
        self,
        *,
        parallelism: int = 3,
        wave_offsets: int = 10_000,
        ends: tuple[PartitionEnd, ...] = (),
        executor: Executor | None = None,
        drivers: SystemDrivers | None = None,
        loop: WaveLoop = run_in_turn,
    ) -> list[WaveCompleted]:
        """Run a backfill to its end in this process, and return its waves."""
        driver, waves = self.driver(
            parallelism=parallelism,
            wave_offsets=wave_offsets,
            ends=ends,
            executor=executor,
            drivers=drivers,
        )
        driver.run(loop)
        return waves

    def driver(
        self,
        *,
        parallelism: int = 3,
        wave_offsets: int = 10_000,
        ends: tuple[PartitionEnd, ...] = (),
        executor: Executor | None = None,
        drivers: SystemDrivers | None = None,
    ) -> tuple[Backfill, list[WaveCompleted]]:
        """Make the driver of a new submission. It adds its waves to the list, still empty here."""
        config = self.config(job__parallelism=parallelism)
        drivers = drivers or SystemDrivers()
        waves: list[WaveCompleted] = []
        driver = Backfill(
            self.submission(config, ends),
            config,
            drivers,
            executor or InProcessExecutor(in_process_host(drivers)),
            wave_offsets=wave_offsets,
            on_wave=waves.append,
        )
        return driver, waves


def in_process_host(drivers: SystemDrivers) -> TaskHost:
    """Make a host for tasks in this process."""
    return TaskHost(drivers=drivers, io=drivers.threads.pool(IO_THREADS, name="io"))
