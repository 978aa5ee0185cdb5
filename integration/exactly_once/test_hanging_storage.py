"""A call to the checkpoint storage that never returns: a clear error, a restart, exact output.

The tests replace a file by a named pipe. A process that opens the pipe to read then hangs in the
kernel, as on a disk that hangs.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from integration.support.storage_faults import hanging
from integration.support.user_project import Folder
from tidegate.controlplane.jobmaster.events import STORAGE_HANGS
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

CONFIG = {"checkpoint.timeout": "3s", "restart.strategy": "fixed_delay", "restart.delay": "100ms"}


@pytest.mark.slow
def test_a_publication_that_hangs_ends_in_a_new_jobmaster(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    config = {**CONFIG, "checkpoint.interval": "2s"}
    with folder.started(bounded=False, config=config) as run:
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        journal = tmp_path / ".tidegate" / "checkpoints" / folder.job / "journal"
        with hanging(max(journal.glob("*.json"))):
            folder.orders(30, first=30)
            left = f"with status {STORAGE_HANGS}"
            run.until(lambda: left in folder.logs(), "left", timeout_s=60.0)
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input", 60.0)
        assert run.stop().code == 0
    folder.assert_exact(60)
    assert "did not answer" in folder.logs()


def test_a_restore_that_hangs_ends_in_a_new_attempt(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config=CONFIG) as run:
        folder.orders(30)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
    shutil.rmtree(tmp_path / ".tidegate" / "state")  # all state must come from the storage
    files = tmp_path / ".tidegate" / "checkpoints" / folder.job / "files"
    with folder.started(bounded=False, config=CONFIG) as run:
        with hanging(max(files.rglob("*.sst"))):
            folder.orders(30, first=30)
            run.until(lambda: "made no progress for 3 s" in run.err, "told", timeout_s=60.0)
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input", 60.0)
        assert run.stop().code == 0
    folder.assert_exact(60)
