"""A local cluster whose JobMasters and slots are stubs, for tests that kill its processes.

`python -m integration.support.stub_cluster FOLDER` runs such a cluster until it is killed. It
prints `up` when a job has all of its slots.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tidegate.bootstrap import ClusterSpec, processes
from tidegate.config_load import load
from tidegate.controlplane.client.client import Client
from tidegate.controlplane.client.local import LocalCluster
from tidegate.drivers.system import SystemDrivers
from tidegate.ids import JobName
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission

ROOT = Path(__file__).parents[2]
SOON_S = 60.0
"""A limit for a busy machine, in seconds. It is not a measured value."""


class Running:
    """A local cluster of two TaskManagers with two slots each, and a client for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        config = load(
            folder=folder,
            command_line={
                "checkpoint.dir": str(folder / "storage"),
                "logs.dir": str(folder / "logs"),
                "taskmanager.slots": 2,
                "cluster.task_managers": 2,
            },
        )
        common = ClusterSpec(
            config=config,
            cluster="test",
            role_mains={
                "slot": "integration.support.process_stubs:slot",
                "jobmaster": "integration.support.process_stubs:jobmaster",
            },
            path=(str(ROOT),),
        )
        drivers = SystemDrivers()
        self.cluster = LocalCluster(processes(common), drivers.rpc, drivers.clock, drivers.threads)
        self.client: Client = self.cluster.client()

    def submit(self, name: str = "job", parallelism: int = 4, **settings: object) -> JobName:
        job = JobName(name)
        self.client.submit(
            Submission(
                job=job,
                reference="no.module:NoClass",
                working_folder=str(self.folder),
                params={},
                parallelism=parallelism,
                max_parallelism=128,
                settings=settings,
                fingerprint="",
                code_digest="",
                python_version="",
                tidegate_version="",
            )
        )
        return job

    def complete(self, job: JobName, after: int = 0) -> JobReport:
        """Wait until an attempt newer than `after` has all of its slots, and return the report."""

        def is_complete(report: JobReport) -> bool:
            return report.attempt > after and bool(report.slots) and not report.slots_missing

        return self.client.wait(job, until=is_complete, timeout_s=SOON_S)

    def log(self, name: str) -> str:
        return (self.folder / "logs" / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    owned = Running(Path(sys.argv[1]))
    owned.complete(owned.submit())
    print("up", flush=True)
    while True:
        time.sleep(SOON_S)
