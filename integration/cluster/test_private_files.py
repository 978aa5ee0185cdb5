"""Only the owner of a run can read its files, and no setting loads a library into its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.user_project import Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Set an umask of 0, which the processes that a test starts inherit."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, int]:
    """Return the modes of all files and folders below a folder that a running job writes to."""
    found = {".": root.stat().st_mode & 0o777}
    for path in root.rglob("*"):
        try:
            found[path.relative_to(root).as_posix()] = path.stat().st_mode & 0o777
        except FileNotFoundError:  # the job has removed it meanwhile
            continue
    return found


@pytest.mark.usefixtures("open_umask")
def test_files_of_a_run_are_readable_by_the_owner_only(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(300)
    with folder.started(bounded=False) as run:
        run.until(lambda: len(folder.published()) > 2, "checkpoints")
        found = modes(tmp_path / ".tidegate")
        assert run.stop().code == 0
    # RocksDB chooses the modes of its own files; the folder around them is private.
    rocksdb = {path for path in found if "/store/" in path and path.startswith("state/")}
    assert {mode for path, mode in found.items() if path not in rocksdb} == {0o700, 0o600}
    assert {mode for path, mode in found.items() if path.endswith("/store")} == {0o700}
    for kind in ("/journal/", "/manifests/", "/files/", "/submissions/", "logs/", "/running/store"):
        assert any(kind in path for path in found), f"no {kind} was looked at"


def test_kafka_property_that_loads_a_library_is_refused(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    for key in (
        "kafka.properties.plugin.library.paths",
        "sinks.totals.properties.Plugin.Library.Paths",
    ):
        outcome = folder.run(config={key: "/tmp/evil.so"})
        assert outcome.code == 2, outcome.err
        assert "librdkafka loads these libraries into the process" in outcome.err
    assert not (tmp_path / ".tidegate").exists(), "something was started"
