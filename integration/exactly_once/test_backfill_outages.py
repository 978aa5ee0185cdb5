"""Outages during a wave: each wait has a limit. Lag monitors see the offsets that a wave has
read.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from integration.exactly_once.test_backfill_input import Input
from integration.support.user_project import TOTALS, Folder
from tidegate.backfill.executor import InProcessExecutor
from tidegate.dataplane.engine import IO_THREADS
from tidegate.dataplane.waves.level_task import TaskHost
from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import KafkaError, StorageError, StorageMismatchError
from tidegate.ports.blobs import BlobStore
from tidegate.ports.kafka import PartitionReader
from tidegate.stream_elements import TopicPartition

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(180)]

TIMEOUT_S = 10.0
PART_S = 4.0
"""The upload time of one file, in seconds. All files of a task together take longer than
`TIMEOUT_S`.
"""


class Uploads:
    """A checkpoint storage whose uploads call a function first."""

    def __init__(self, real: BlobStore, before: Callable[[], object]) -> None:
        self._real, self._before = real, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def put_file(self, path: str, source: Path) -> None:
        self._before()
        self._real.put_file(path, source)


class WorkerDrivers(SystemDrivers):
    """The drivers of a worker whose checkpoint storage is an `Uploads`."""

    def __init__(self, before: Callable[[], object]) -> None:
        super().__init__()
        self._before = before

    def blob_store(self, url: str) -> BlobStore:
        storage: Any = Uploads(super().blob_store(url), self._before)
        return storage  # type: ignore[no-any-return]


def executor(before: Callable[[], object]) -> InProcessExecutor:
    return running_on(WorkerDrivers(before))


def running_on(drivers: SystemDrivers) -> InProcessExecutor:
    return InProcessExecutor(
        TaskHost(drivers=drivers, io=drivers.threads.pool(IO_THREADS, name="io"))
    )


@pytest.fixture
def given(kafka: EmbeddedKafka, tmp_path: Path) -> Input:
    made = Input(Folder.make(tmp_path, kafka.bootstrap), {})
    made.settings["checkpoint.timeout"] = f"{TIMEOUT_S:g} s"
    made.folder.orders(60)
    return made


def test_an_upload_that_hangs_ends_the_wave_with_an_error_that_names_its_subtask(
    given: Input,
) -> None:
    given.settings["restart.strategy"] = "none"
    release = threading.Event()
    driver, waves = given.job().driver(
        parallelism=1, wave_offsets=40, executor=executor(release.wait)
    )
    try:
        with pytest.raises(StorageError) as caught:
            driver.run()
    finally:
        release.set()
    assert "The output and state of orders#0 were not stored" in str(caught.value)
    assert "said anything for 10 s (checkpoint.timeout)" in str(caught.value)
    assert waves == []
    given.assert_stopped_at(0)
    given.job().backfill(wave_offsets=40)
    given.folder.assert_exact(60)


def test_wave_is_retried_after_one_hanging_upload(given: Input) -> None:
    release, hangs = threading.Event(), iter((True,))

    def once() -> None:
        if next(hangs, False):
            release.wait()

    try:
        given.job().backfill(parallelism=1, wave_offsets=40, executor=executor(once))
    finally:
        release.set()
    assert given.journal().count("claim") >= 1 + 2
    given.assert_closed_at(60)


def test_sequential_uploads_may_together_exceed_the_checkpoint_timeout(
    given: Input,
) -> None:
    """Each step has its own state, and one I/O thread stores the files of all states."""
    began = time.monotonic()
    times: list[float] = []

    def slow() -> None:
        times.append(time.monotonic() - began)
        time.sleep(PART_S)

    given.settings["restart.strategy"] = "none"
    given.job(TOTALS).backfill(parallelism=1, wave_offsets=60, executor=executor(slow))
    assert times[-1] + PART_S - times[0] > TIMEOUT_S, "the uploads took longer than the limit"
    given.assert_closed_at(60)


def test_backfill_commits_the_offsets_of_each_wave_to_the_group_of_the_live_job(
    given: Input,
) -> None:
    admin = KafkaClusterAdmin({"bootstrap.servers": given.folder.bootstrap})
    group, topic = f"tidegate.{given.folder.job}.orders", given.folder.topics["orders"]
    driver, waves = given.job().driver(wave_offsets=20)
    try:
        assert not driver.run(stop=lambda: bool(waves))
        (first,) = admin.group_commits(group).items()
        assert (first[0], first[1].offset) == (TopicPartition(topic, 0), 20)
        assert first[1].metadata.endswith(f" {waves[0].attempt}-1")
        assert driver.run()
        (last,) = admin.group_commits(group).values()
        assert last.offset == 60
    finally:
        admin.close()


class Elsewhere(SystemDrivers):
    """The drivers of a worker on a host that reaches another storage or other brokers than the
    driver.
    """

    def __init__(self, *, storage: str = "", bootstrap: str = "") -> None:
        super().__init__()
        self._storage, self._bootstrap = storage, bootstrap

    def blob_store(self, url: str) -> BlobStore:
        return super().blob_store(self._storage or url)

    def partition_reader(
        self, kafka: Mapping[str, str], group: str, *, with_end_of_partition: bool
    ) -> PartitionReader:
        settings = {**kafka, "bootstrap.servers": self._bootstrap or kafka["bootstrap.servers"]}
        return super().partition_reader(
            settings, group, with_end_of_partition=with_end_of_partition
        )


def test_wave_fails_with_the_kafka_error_of_workers_that_cannot_reach_kafka(
    given: Input,
) -> None:
    given.settings |= {"restart.strategy": "none", "checkpoint.tolerated_outage": "5 s"}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        driver, _ = given.job().driver(executor=running_on(Elsewhere(bootstrap=address)))
        with pytest.raises(KafkaError) as caught:
            driver.run()
    assert "No record came for 5 s (checkpoint.tolerated_outage)" in str(caught.value)
    assert address in str(caught.value)
    given.assert_stopped_at(0)


def test_wave_fails_if_its_workers_see_another_checkpoint_storage(
    given: Input, tmp_path: Path
) -> None:
    """The workers have another folder at the same address."""
    given.settings["restart.strategy"] = "none"
    empty = tmp_path / "empty"
    empty.mkdir()
    driver, _ = given.job().driver(executor=running_on(Elsewhere(storage=str(empty))))
    with pytest.raises(StorageMismatchError, match="does not see the checkpoint storage of job"):
        driver.run()
    given.assert_stopped_at(0)
