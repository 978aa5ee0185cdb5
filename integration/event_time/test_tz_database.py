"""A host with another tz database: a job with calendar windows refuses its slots, and runs when the
host has the right version.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tzdata  # type: ignore[import-untyped]

from integration.support.brokers import Kafka
from integration.support.running import ROOT, in_time
from integration.support.session_cluster import TIDEGATE, tidegate
from integration.support.user_project import Folder
from tidegate.drivers.kafka import die_with_parent
from tidegate.drivers.kafka.broker_config import choose_ports

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]

JOB = """
import msgspec

from tidegate import Calendar, Count, Json, KafkaSink, KafkaSource, Monotonous, Pipeline


class Day(msgspec.Struct, frozen=True):
    start_ms: int
    count: int


class Days(Pipeline, name="{job}"):
    clicks = KafkaSource("{clicks}", value=Json(int), watermarks=Monotonous())
    days = KafkaSink("{days}", value=Json(Day))

    def define(self) -> None:
        by_value = self.clicks.key_by(lambda click: click)
        by_value.window(Calendar("day", zone="Europe/Berlin")).aggregate(
            Count(), into=lambda w, count: Day(w.start_ms, count), uid="count-days"
        ).to(self.days)
"""
OTHER = "1970a"
"""The version of the other tz database."""
PATIENCE_S = 90.0


def other_tz_database(folder: Path) -> Path:
    """Return a folder with a copy of the package that has another version."""
    package = folder / "other" / "tzdata"
    shutil.copytree(Path(str(tzdata.__file__)).parent, package)
    text = (package / "__init__.py").read_text()
    assert tzdata.IANA_VERSION in text
    (package / "__init__.py").write_text(text.replace(tzdata.IANA_VERSION, OTHER))
    return package.parent


@contextmanager
def server(folder: Folder, *words: str, path: Path | None = None) -> Iterator[None]:
    """Run a server until the block ends. `path` is searched for packages first."""
    found = [str(each) for each in (path, ROOT / "framework", ROOT) if each is not None]
    owner = [sys.executable, "-I", "-S", die_with_parent.__file__, str(os.getpid())]
    process = subprocess.Popen(
        [*owner, TIDEGATE, *words],
        cwd=folder.path,
        env={**os.environ, "PYTHONPATH": ":".join(found)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def wait_for(folder: Folder, at: str, what: str, condition: Callable[[str], bool]) -> str:
    """Return the first JSON report of the job that fits."""
    end_s = time.monotonic() + PATIENCE_S
    while True:
        said = tidegate("status", folder.job, "--jobmanager", at, "--json").stdout
        if condition(said):
            return said
        in_time(time.monotonic() < end_s, f"no {what}: {said}")
        time.sleep(0.3)


def test_slot_of_a_host_with_another_tz_database_is_refused_until_the_versions_are_equal(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, "", topics=("clicks", "days"), partitions=2)
    folder.write("job.py", JOB)
    at = f"127.0.0.1:{choose_ports(1)[0].client}"
    jobmanager = f"jobmanager.port={at.partition(':')[2]}"
    local = ("-c", "jobmanager.host=127.0.0.1", "-c", jobmanager)
    worker = ("taskmanager", "--jobmanager", at, "--slots", "1")
    hosts = [("-c", f"taskmanager.host=127.0.0.{number}") for number in (2, 3)]
    with server(folder, "jobmanager", *local), server(folder, *worker, *hosts[0]):
        with server(folder, *worker, *hosts[1], path=other_tz_database(tmp_path)):
            done = tidegate(
                *("submit", "job:Days", "--jobmanager", at, "-p", "2"),
                *("-c", f"kafka.bootstrap_servers={kafka.bootstrap}"),
                folder=folder.path,
            )
            assert done.returncode == 0, done.stderr
            said = wait_for(
                folder, at, "refusal", lambda text: f"has version {OTHER} of the tz" in text
            )
            assert f"with version {tzdata.IANA_VERSION}" in said
            assert "Install the same version of the tzdata package on all hosts" in said
        with server(folder, *worker, *hosts[1]):
            wait_for(folder, at, "checkpoint", lambda text: '"sync_ms"' in text)
            assert tidegate("cancel", folder.job, "--jobmanager", at).returncode == 0
