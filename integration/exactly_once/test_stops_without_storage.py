"""A stop and a cancel while the checkpoint storage does not answer, on a real cluster.

The storage vanishes, hangs or fails while the job recovers, runs or ends. Each command names the
cause within seconds, and the job ends within `job.stop_grace_period`. Nothing can be settled or
closed then, so the next run does it, and every total is there once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.support import storage_faults
from integration.support.running import in_time
from integration.support.user_project import Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

GRACE_S = 8.0
CONFIG = {"job.stop_grace_period": "8 s"}
SLACK_S = 10.0
"""The time in seconds that a busy machine may need for the processes of a command."""


def storage_of(folder: Folder) -> Path:
    return folder.path / ".tidegate" / "checkpoints"


@contextmanager
def vanished(folder: Folder) -> Iterator[None]:
    """Move the storage away, as an unmount does."""
    storage = storage_of(folder)
    aside = storage.with_suffix(".aside")
    storage.rename(aside)
    try:
        yield
    finally:
        aside.rename(storage)


@contextmanager
def hanging(folder: Folder) -> Iterator[None]:
    """Make each check of the storage hang."""
    with storage_faults.hanging(storage_of(folder) / "_storage" / "id"):
        yield


LOSSES = {"vanished": vanished, "hanging": hanging}
TOLD = {"vanished": "is gone", "hanging": "has not answered for"}


def assert_ends(run: Run, began_s: float) -> None:
    """Check that the run ends in time, and that its message says what is left open."""
    outcome = run.wait(GRACE_S + SLACK_S)
    took_s = time.monotonic() - began_s
    in_time(took_s < GRACE_S + SLACK_S, f"{took_s:.1f} s\n{outcome.err}")
    assert outcome.code == 1, outcome.err
    assert "did not wait longer within job.stop_grace_period" in outcome.err
    assert "The next run of the job settles both before it reads." in outcome.err


@pytest.mark.parametrize(
    ("loss", "state", "end"),
    [
        ("vanished", "recovery", "cancel"),
        pytest.param("hanging", "recovery", "cancel", marks=pytest.mark.slow),
        pytest.param("vanished", "recovery", "stop", marks=pytest.mark.soak),
        pytest.param("hanging", "recovery", "stop", marks=pytest.mark.soak),
        pytest.param("vanished", "recovery", "Ctrl-C", marks=pytest.mark.soak),
        pytest.param("hanging", "recovery", "Ctrl-C", marks=pytest.mark.soak),
        pytest.param("hanging", "running", "Ctrl-C", marks=pytest.mark.slow),
        pytest.param("vanished", "running", "Ctrl-C", marks=pytest.mark.soak),
        pytest.param("vanished", "running", "cancel", marks=pytest.mark.soak),
        pytest.param("hanging", "running", "cancel", marks=pytest.mark.soak),
    ],
)
def test_a_job_without_its_storage_ends_in_time_and_its_next_run_settles_it(
    kafka: EmbeddedKafka, tmp_path: Path, loss: str, state: str, end: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config=CONFIG) as run:
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        with LOSSES[loss](folder):
            folder.orders(30, first=30)
            if state == "recovery":
                run.kill_slots()
            run.until(lambda: TOLD[loss] in run.err, "told of the loss", timeout_s=20.0)
            shown = folder.command("status", folder.job)
            assert TOLD[loss] in shown.out, shown
            began_s = time.monotonic()
            if end == "Ctrl-C":
                run.process.send_signal(signal.SIGINT)
            else:
                ended = folder.command(end, folder.job)
                assert ended.code == 1, ended
                assert f"the {end} waits: The checkpoint storage" in ended.err, ended
            assert_ends(run, began_s)
    assert folder.run().code == 0
    folder.assert_exact(60)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param("vanished", marks=pytest.mark.slow),
        pytest.param("hanging", marks=pytest.mark.soak),
    ],
)
def test_a_second_interrupt_ends_a_job_without_its_storage_at_once(
    kafka: EmbeddedKafka, tmp_path: Path, loss: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config=CONFIG) as run:
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        with LOSSES[loss](folder):
            run.kill_slots()
            run.until(lambda: TOLD[loss] in run.err, "told of the loss", timeout_s=20.0)
            run.process.send_signal(signal.SIGINT)
            run.until(lambda: "again leaves at once" in run.err, "told of the stop")
            began_s = time.monotonic()
            assert run.stop().code == 130
            in_time(time.monotonic() - began_s < SLACK_S, "it took too long")
    folder.orders(30, first=30)
    assert folder.run().code == 0
    folder.assert_exact(60)
