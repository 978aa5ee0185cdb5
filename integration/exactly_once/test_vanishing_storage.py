"""A checkpoint storage that is unmounted or replaced while a job runs.

The job publishes nothing meanwhile, and reports the reason within seconds. It continues when the
storage is back, and every total is there once, in order. No process writes below the mount point.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from integration.support.resource_usage import kind_of
from integration.support.running import in_time
from integration.support.session_cluster import TIDEGATE
from integration.support.user_project import Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.storage.file_systems import MOUNTS, parse_mounts
from tidegate.drivers.storage.local import LocalStore

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

TOLD_S = 10.0
"""The time within which the job must report the loss on a busy machine, in seconds. The job checks
the storage every half second.
"""
GONE_S = 3.0
"""The time without the storage, in seconds: many checkpoint intervals."""


class Disk:
    """A folder that can be mounted at `point`, and unmounted again."""

    def __init__(self, folder: Path, point: Path) -> None:
        self.folder, self.point = folder, point
        folder.mkdir()
        point.mkdir(exist_ok=True)

    def mount(self) -> None:
        command = ["mount", "--bind", str(self.folder), str(self.point)]
        mounted = subprocess.run(command, check=False, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"a folder cannot be mounted here: {mounted.stderr.strip()}")

    def is_mounted(self) -> bool:
        """Return whether the folder is mounted.

        `os.path.ismount` does not recognize a bind mount within one file system.
        """
        mounts = parse_mounts(MOUNTS.read_text(encoding="utf-8"))
        return any(mount.point == str(self.point) for mount in mounts)

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.point)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk", tmp_path / "mounted")
    made.mount()
    yield made
    while made.is_mounted():
        made.unmount()


CONFIG = {"checkpoint.dir": "mounted/checkpoints"}


@contextmanager
def publishing(folder: Folder, config: Mapping[str, str] = CONFIG) -> Iterator[Run]:
    """Yield a run that has published 30 orders.

    The block must remove the storage, write 30 more orders, and bring the storage back. After the
    block, this function checks that all orders are published once.
    """
    with folder.started(bounded=False, config=config) as run:
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        yield run
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input")
        assert run.stop().code == 0
    folder.assert_exact(60)


def told_of(run: Run, what: str) -> None:
    run.until(lambda: what in run.err, f"told that {what!r}", timeout_s=TOLD_S)


def stays_unpublished(folder: Folder, visible: int) -> None:
    time.sleep(GONE_S)
    assert len(folder.read("totals")) == visible, "something was published without a storage"


def process_of(run: Run, role: str) -> psutil.Process:
    for process in psutil.Process(run.process.pid).children(recursive=True):
        if kind_of(process) == role:
            return process
    raise AssertionError(f"no {role} runs")


def test_job_waits_for_an_unmounted_checkpoint_storage(
    kafka: EmbeddedKafka, tmp_path: Path, disk: Disk
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with publishing(folder) as run:
        disk.unmount()
        told_of(run, f"The checkpoint storage {disk.point}/checkpoints is gone")
        folder.orders(30, first=30)
        stays_unpublished(folder, 30)
        assert list(disk.point.iterdir()) == [], "something was written below the mount point"
        disk.mount()
    assert "restart" not in run.err.replace("0 restarts", ""), run.err


@pytest.mark.slow
def test_storage_outage_over_tolerated_outage_ends_the_attempt_and_the_next_attempt_waits(
    kafka: EmbeddedKafka, tmp_path: Path, disk: Disk
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    config = {**CONFIG, "checkpoint.tolerated_outage": "2s", "restart.strategy": "fixed_delay"}
    config |= {"restart.attempts": "1", "restart.delay": "100ms"}
    with publishing(folder, config) as run:
        disk.unmount()
        folder.orders(30, first=30)
        told_of(run, "was gone for 2 s (checkpoint.tolerated_outage)")
        stays_unpublished(folder, 30)
        assert list(disk.point.iterdir()) == []
        disk.mount()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["jobmaster", "jobmanager"])
def test_replacement_of_a_process_killed_without_storage_waits_for_the_storage(
    kafka: EmbeddedKafka, tmp_path: Path, disk: Disk, role: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with publishing(folder) as run:
        disk.unmount()
        told_of(run, "is gone")
        folder.orders(30, first=30)
        process_of(run, role).send_signal(signal.SIGKILL)
        stays_unpublished(folder, 30)
        assert list(disk.point.iterdir()) == []
        disk.mount()


@pytest.mark.slow
def test_job_does_not_write_to_a_second_storage_at_the_same_path(
    kafka: EmbeddedKafka, tmp_path: Path, disk: Disk
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    second = Disk(tmp_path / "second", disk.point)
    LocalStore(second.folder / "checkpoints").identify()
    before = sorted(second.folder.rglob("*"))
    with publishing(folder) as run:
        disk.unmount()
        second.mount()
        told_of(run, "another storage is there")
        folder.orders(30, first=30)
        stays_unpublished(folder, 30)
        assert sorted(second.folder.rglob("*")) == before
        second.unmount()
        disk.mount()


@pytest.mark.slow
def test_a_session_jobmanager_that_starts_without_its_storage_waits_for_it(
    tmp_path: Path, disk: Disk
) -> None:
    """An empty mount point must not count as a new storage. The JobManager would lose its jobs."""
    log = tmp_path / "log"

    def serve() -> subprocess.Popen[bytes]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = {**CONFIG, "jobmanager.port": str(port), "jobmanager.host": "127.0.0.1"}
        words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with log.open("wb") as output:
            return subprocess.Popen(
                [TIDEGATE, "jobmanager", *words], cwd=tmp_path, stdout=output, stderr=output
            )

    def says(server: subprocess.Popen[bytes], what: str) -> None:
        until_s = time.monotonic() + 60
        while what not in log.read_text(encoding="utf-8"):
            assert server.poll() is None, log.read_text(encoding="utf-8")
            in_time(time.monotonic() < until_s, log.read_text(encoding="utf-8"))
            time.sleep(0.1)

    first = serve()
    try:
        says(first, "serving: ")
    finally:
        first.terminate()
        first.wait(30)
    disk.unmount()
    second = serve()
    try:
        says(second, "the JobManager waits")
        assert list(disk.point.iterdir()) == []
        disk.mount()
        says(second, "serving: ")
    finally:
        second.terminate()
        second.wait(30)
