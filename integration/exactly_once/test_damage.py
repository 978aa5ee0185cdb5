"""Damaged checkpoint storages and full disks: the job overwrites nothing, a repair is enough."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.support.user_project import ONE_CHECKPOINT, Folder, assert_golden, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

NOT_CHECKPOINTS = {"submission.json", "decision.json", "result.json"}
"""Files that every run writes, in addition to its code archive: the last submission and its
result."""


def torn(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])


def edited(file: Path) -> None:
    data = file.read_bytes()
    half = len(data) // 2
    file.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])


def missing(file: Path) -> None:
    file.unlink()


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "manifest-torn": ("manifests/*.json", torn),
    "manifest-missing": ("manifests/*.json", missing),
    "state-file-edited": ("files/**/*.sst", edited),
    "state-file-missing": ("files/**/*.sst", missing),
    "journal-entry-torn": ("journal/*2.json", torn),
    "journal-entry-missing": ("journal/*3.json", missing),
}


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in NOT_CHECKPOINTS and path.suffix != ".zip"
    }


@pytest.fixture(scope="module")
def finished(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Folder, Path]]:
    """A folder whose job has run, and its checkpoint folder.

    The job has only one checkpoint, so the tests damage the files that the next run restores. After
    all tests the job continues, and its output is exact.
    """
    folder = Folder.make(tmp_path_factory.mktemp("finished"), kafka.bootstrap)
    folder.orders(30)
    assert folder.run(config=ONE_CHECKPOINT).code == 0
    assert folder.published() == ["1-1"]
    folder.orders(30, first=30)
    yield folder, folder.path / ".tidegate" / "checkpoints" / folder.job
    mended = folder.run()
    assert mended.code == 0, mended.err
    folder.assert_exact(60)


@pytest.mark.once
@pytest.mark.parametrize("name", DAMAGE)
def test_run_names_a_damaged_checkpoint_file_and_overwrites_no_file(
    finished: tuple[Folder, Path], tmp_path: Path, name: str
) -> None:
    folder, stored = finished
    pattern, damage = DAMAGE[name]
    (file, *_) = sorted(stored.glob(pattern))
    shutil.copy(file, tmp_path / "backup")
    damage(file)
    before = files_below(stored)
    try:
        outcome = folder.run()
    finally:
        after = files_below(stored)
        shutil.copy(tmp_path / "backup", file)
    assert outcome.code == 2, outcome.err
    assert_golden(f"damage-{name}", folder.normalised(paragraph(outcome.err)))
    assert "Traceback" not in outcome.err
    # The file `claimed.json` of a submission holds its newest claim. A later submission deletes it.
    kept = {name: data for name, data in before.items() if not name.endswith("claimed.json")}
    assert kept.items() <= after.items(), "something was overwritten or deleted"
    added = after.keys() - before.keys()
    assert not [path for path in added if path.startswith(("files/", "manifests/"))], "it has run"
    assert len(folder.read("totals")) == 30


# --- full disks ---------------------------------------------------------------------------------


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> None:
    """Fill the whole disk."""
    for size in (1 << 20, 1 << 12):
        try:
            with (disk / "filler").open("ab", buffering=0) as filler:
                while filler.write(b"0" * size) == size:
                    pass
        except OSError:
            continue


FULL = {
    "checkpoint.dir": ("6m", "make room, or set checkpoint.dir to another disk"),
    "state.local_dir": ("24m", "set state.local_dir to a larger disk"),
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", FULL)
def test_run_reports_a_full_disk_and_continues_when_there_is_space(
    kafka: EmbeddedKafka, tmp_path: Path, setting: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    size, remedy = FULL[setting]
    config = {
        setting: "small",
        "checkpoint.interval": "200ms",
        "restart.strategy": "fixed_delay",
        "restart.delay": "300ms",
    }
    with (
        small_disk(tmp_path / "small", size) as disk,
        folder.started(bounded=False, config=config) as run,
    ):
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        fill(disk)
        folder.orders(30, first=30)
        end_s = time.monotonic() + 30
        while remedy not in run.err and time.monotonic() < end_s:
            fill(disk)  # an attempt that ended has freed some space
            time.sleep(0.1)
        assert "disk is full" in run.err, run.err
        assert remedy in run.err, run.err
        assert "Traceback" not in run.err
        (disk / "filler").unlink()
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input")
        outcome = run.stop()
        assert outcome.code == 0, outcome.err
    folder.assert_exact(60)


RESTARTED_SOON = {
    "state.local_dir": "small",
    "restart.strategy": "fixed_delay",
    "restart.delay": "300ms",
}


@pytest.mark.slow
def test_slot_that_cannot_make_its_local_state_folder_reports_it_and_the_job_recovers(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config=RESTARTED_SOON) as run:
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        of_job = tmp_path / "small" / folder.job
        of_job.rename(tmp_path / "small" / "away")
        of_job.touch()
        os.kill(run.slots()[0], signal.SIGKILL)
        run.until(lambda: "for local state cannot be made" in run.err, "told")
        of_job.unlink()
        folder.orders(30, first=30)
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input")
        assert run.stop().code == 0
    folder.assert_exact(60)


@pytest.mark.slow
def test_job_recovers_when_local_files_of_a_killed_slot_fill_the_disk(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The killed slot's files use all inodes. No folder can be made next to them, and no other
    process removes them.
    """
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with (
        small_disk(tmp_path / "small", "24m,nr_inodes=200") as disk,
        folder.started(bounded=False, config=RESTARTED_SOON) as run,
    ):
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        found = disk.glob(f"{folder.job}/*/*/*")
        (of_slot,) = [path for path in found if path.parent.parent.name != "code"]
        take_all_inodes(of_slot)
        os.kill(run.slots()[0], signal.SIGKILL)
        folder.orders(30, first=30)
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input")
        assert run.stop().code == 0
    folder.assert_exact(60)


def take_all_inodes(folder: Path) -> None:
    for number in itertools.count():
        try:
            (folder / f"file-{number}").touch()
        except OSError:
            return
