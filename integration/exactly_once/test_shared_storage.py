"""A session cluster whose hosts do not see the same checkpoint storage.

Each TaskManager has its own working folder, as if it ran on its own host. The path of
`checkpoint.dir` begins with `/proc/self/cwd`, so each process uses a storage in its own folder.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.support.brokers import Kafka
from integration.support.running import in_time, owned
from integration.support.session_cluster import POLL_S, TIDEGATE, tidegate
from integration.support.user_project import Folder
from tidegate.drivers.kafka.broker_config import choose_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.kafka,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/self/cwd"),
]

TIMEOUT_S = 120.0
STORAGE = "/proc/self/cwd/.tidegate/checkpoints"


@contextmanager
def session_cluster(folders: list[Path], bootstrap: str) -> Iterator[str]:
    """Run a JobManager and a TaskManager in the first folder, and a TaskManager in each other one.

    Yields the JobManager's address.
    """
    port = choose_ports(1)[0].client
    for folder in folders:
        (folder / "tidegate.toml").write_text(
            f"""
            [kafka]
            bootstrap_servers = "{bootstrap}"
            [jobmanager]
            host = "127.0.0.1"
            port = {port}
            [taskmanager]
            slots = 1
            [checkpoint]
            dir = "{STORAGE}"
            interval = "300 ms"
            [job]
            parallelism = {len(folders)}
            """
        )
    commands = [("jobmanager", folders[0]), *(("taskmanager", folder) for folder in folders)]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, folder in commands:
            log = folder / f"{command}.log"
            running.append(owned([TIDEGATE, command], folder=folder, log=log))
        yield f"127.0.0.1:{port}"
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            process.wait(TIMEOUT_S)


def status(job: str, at: str) -> dict[str, Any]:
    asked = tidegate("status", job, "--jobmanager", at, "--json")
    assert asked.returncode == 0, asked.stderr
    report: dict[str, Any] = json.loads(asked.stdout)
    return report


def wait_for_error(job: str, at: str, kind: str) -> dict[str, Any]:
    end_s = time.monotonic() + TIMEOUT_S
    while True:
        report = status(job, at)
        if report["error"] is not None and report["error"]["kind"] == kind:
            return report
        in_time(time.monotonic() < end_s, report)
        time.sleep(POLL_S)


def wait_until_read(folder: Folder, count: int) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while len(folder.read("totals")) < count:
        in_time(time.monotonic() < end_s, "the job does not continue")
        time.sleep(POLL_S)


def test_no_checkpoint_completes_if_a_host_does_not_see_the_shared_storage(
    kafka: Kafka, tmp_path: Path
) -> None:
    """In an earlier version the checkpoints completed, and the first restore on another host found
    no files.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    folder = Folder.make(here, kafka.bootstrap, partitions=2)
    folder.orders(300)
    with session_cluster([here, there], kafka.bootstrap) as at:
        done = tidegate("submit", "job:Totals", folder=here)
        assert done.returncode == 0, done.stderr
        report = wait_for_error(folder.job, at, "StorageMismatchError")
        message = report["error"]["message"]
        assert STORAGE in message
        assert "Host " in message
        assert report["checkpoints_completed"] == 0
        assert folder.read("totals") == []
        # The remedy: the operator mounts the volume, and the job continues.
        storage = there / ".tidegate" / "checkpoints"
        shutil.rmtree(storage, ignore_errors=True)
        storage.parent.mkdir(exist_ok=True)
        storage.symlink_to(here / ".tidegate" / "checkpoints")
        wait_until_read(folder, 300)
        stopped = tidegate("stop", folder.job, "--jobmanager", at)
        assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    folder.assert_exact(300)
