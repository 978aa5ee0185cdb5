"""Local state on real clusters: the slot that replaces a killed slot restores from its local files.
A job that has ended leaves no local state.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.faults.kill_matrix.fault_sequences import PIPELINES, kill_one
from integration.faults.kill_matrix.faulty_storage import Rule, Rules
from integration.faults.kill_matrix.live import LiveJob
from integration.faults.kill_matrix.scenarios import EXACT, Stage
from integration.faults.kill_matrix.storage_faults import (
    LOCAL_STATE,
    OPTIONS,
    STATE,
    kill_with_state,
)
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

VERSION = "4.3.0"
NOTED = Rule(does="slow", call="get_file", path=STATE, role="slot")
"""A rule that only records downloads of state. It adds no delay."""


@pytest.fixture
def stage(tmp_path: Path, kafka: EmbeddedKafka) -> Iterator[Stage]:
    stage = Stage(tmp_path, seed=1, date="", say=print, brokers={VERSION: kafka})
    yield stage
    stage.close()


def has_published(live: LiveJob) -> bool:
    """Return whether the newest attempt has published a checkpoint.

    Its local state is then complete, and belongs to this attempt.
    """
    kinds = [entry["kind"] for entry in reversed(live.job.journal())]
    return "publication" in kinds[: kinds.index("claim")]


@pytest.mark.once
@pytest.mark.parametrize("lost", [False, True], ids=["left", "lost"])
def test_slot_restores_from_local_files_of_the_killed_slot(stage: Stage, *, lost: bool) -> None:
    """With `lost`, the local state is deleted, and the slot restores from the checkpoint storage.
    This control shows that the test can tell the two cases apart.
    """
    folder = stage.new_folder("local")
    rules = Rules(folder / "rules")
    with LiveJob(
        stage.broker(VERSION).bootstrap,
        folder,
        PIPELINES["keyed"],
        seed=1,
        environment=rules.environment,
        options=OPTIONS,
    ) as live:
        rules.set(NOTED)
        for _ in range(2):
            live.run.until(lambda: has_published(live), "a checkpoint of this attempt")
            local = folder / LOCAL_STATE
            killed_s = kill_with_state(live, local) if lost else kill_one(live, "slot")
            live.attacked(killed_s * 1000)
        assert bool(rules.met()) == lost
        assert live.finish() == EXACT
    left = [path for path in Path(folder, LOCAL_STATE).rglob("*") if path.is_file()]
    # The unpacked code of the job stays for its next run: code/DIGEST/...
    assert not [path for path in left if "code" not in path.relative_to(folder).parts]
