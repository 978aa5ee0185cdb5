"""Every golden storage is restored by today's code, and the job comes to what was due.

The fake Kafka has the cluster id, the topic ids, the records and the transactions of the day on
which the storage was written. RocksDB and the storage are real. The job restores at another
parallelism, reads the rest of its input in waves, and must have written and kept the same as the
job that wrote the storage.
"""

from __future__ import annotations

import json
import re
import shutil
import types
from pathlib import Path
from typing import Any, cast

import pytest

from integration.agreement.outcome import Outcome, differences, manifests, state_of
from integration.support.backfills import BackfillJob, in_process_host
from integration.support.running import ROOT
from tests.golden.cases import EVENT_TIMES, case_of
from tests.golden.formats import FORMATS, describe_formats
from tests.golden.stored_event_time import FORMS, TOMBSTONES, stored_forms, watermarks_of
from tests.golden.world import STORAGE, STORAGES, WORLD, GoldenDrivers, World, committed
from tidegate import build
from tidegate.backfill.executor import InProcessExecutor
from tidegate.config import Config
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.drivers.system import SystemDrivers
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import JobName, Uid
from tidegate.ports.kafka import TransactionState
from tidegate.stream_elements import MIN_MS

FOUND = sorted(path.parent for path in STORAGES.glob(f"*/*/{WORLD}"))
NEWEST = max((int(path.name) for path in STORAGES.iterdir()), default=0)


def name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


def graph_of(world: World) -> StreamGraph:
    return build(types.new_class("Job", (case_of(world.case).pipeline,), {"name": world.job}))


def restored_job(golden: Path, world: World, folder: Path) -> BackfillJob:
    shutil.copytree(golden / STORAGE, folder / STORAGE)
    shutil.copytree(ROOT / "schemas", folder / "schemas")
    module = f"golden_{name_of(golden).replace('-', '_')}"  # modules of one name would be one
    world.write_module(folder / f"{module}.py")
    return BackfillJob(f"{module}:Job", folder, world.settings())


def names_of_our_code(text: str) -> set[str]:
    return set(re.findall(r"tidegate[.a-z_]*:\w+", text))


@pytest.mark.parametrize("golden", FOUND, ids=name_of)
def test_names_of_our_own_code_are_those_that_its_checkpoints_have(golden: Path) -> None:
    """A module may move. With another name, `tidegate diff` would report a changed function."""
    described = json.dumps(graph_of(World.read(golden / WORLD)).describe())
    stored = "".join(path.read_text() for path in golden.glob(f"{STORAGE}/*/manifests/*.json"))
    assert names_of_our_code(described) == names_of_our_code(stored)


@pytest.mark.parametrize("golden", FOUND, ids=name_of)
def test_a_golden_storage_restores_and_its_job_comes_to_what_was_due(
    golden: Path, tmp_path: Path
) -> None:
    world = World.read(golden / WORLD)
    job = restored_job(golden, world, tmp_path)
    drivers = GoldenDrivers(world)
    waves = job.backfill(
        parallelism=world.parallelism + 1,
        wave_offsets=40,
        executor=InProcessExecutor(in_process_host(drivers)),
        drivers=drivers,
    )
    assert len(waves) > 1
    read = sum(wave.records_in for wave in waves)
    assert 0 < read < sum(len(source.records) for source in world.sources.values())
    graph, storage = graph_of(world), tmp_path / STORAGE
    manifest = manifests(storage / world.job)[-1]
    found = Outcome(
        how="restored",
        messages={
            name: cast("list[Any]", committed(drivers.kafka, sink, world.partitions))
            for name, sink in world.sinks.items()
        },
        state={uid: state_of(manifest, storage, Uid(uid)) for uid in world.due.state},
        positions={
            (split.source, split.topic, split.partition): split.offset for split in manifest.splits
        },
    )
    due = Outcome(
        how="as written",
        messages=cast("dict[str, list[Any]]", world.due.messages),
        state={uid: dict(pairs) for uid, pairs in world.due.state.items()},
        positions={
            (source, topic, partition): offset
            for source, topic, partition, offset in world.due.positions
        },
    )
    assert all(due.state.values()), "the storage keeps state"
    assert not differences(case_of(world.case), graph, found, due)
    stored = watermarks_of(manifests(golden / STORAGE / world.job)[-1])
    for each in manifests(storage / world.job):
        behind = {
            name: at for name, at in watermarks_of(each).items() if at < stored.get(name, MIN_MS)
        }
        assert not behind, f"checkpoint {each.checkpoint} has lost watermarks"


@pytest.mark.parametrize("golden", FOUND, ids=name_of)
def test_the_submissions_of_a_golden_storage_are_read(golden: Path, tmp_path: Path) -> None:
    """Those of live jobs by a JobManager, that of a backfill by the command."""
    world = World.read(golden / WORLD)
    shutil.copytree(golden / STORAGE, tmp_path / STORAGE)
    store = JobStore(SystemDrivers().blob_store(str(tmp_path / STORAGE)), "another")
    found = store.newest(JobName(world.job))
    assert found is not None
    submission, result = found
    config = Config.from_dict(submission.settings)
    assert config.state.backend == world.backend
    stopped = golden.name.endswith("stopped")
    assert (result is not None and result.state == "FINISHED") == stopped


def test_generations_have_what_is_worst_to_restore() -> None:
    """Hard cases are files of changes in addition to a full checkpoint, both backends, open
    transactions of a publication, and a final checkpoint.
    """
    assert NEWEST
    for generation in range(1, NEWEST + 1):
        folders = [path for path in FOUND if path.parent.name == str(generation)]
        worlds = [World.read(folder / WORLD) for folder in folders]
        states = {each.state for world in worlds for each in world.transactions}
        assert TransactionState.ONGOING in states
        assert {world.backend for world in worlds} == {"rocksdb", "memory"}
        newest = [
            manifests(folder / STORAGE / world.job)[-1]
            for folder, world in zip(folders, worlds, strict=True)
        ]
        assert {manifest.final for manifest in newest} == {True, False}
        files = {Path(path).name.partition("-")[0] for each in newest for path in each.files}
        assert {"segment", "memory"} <= files
        assert any(name.endswith(".sst") for name in files)


def test_newest_generation_stores_every_form_of_event_time() -> None:
    """A backfill stores no tombstone, because its wave begins with no sessions."""
    found = {}
    for golden in FOUND:
        world = World.read(golden / WORLD)
        if golden.parent.name == str(NEWEST) and world.case == EVENT_TIMES.name:
            manifest = manifests(golden / STORAGE / world.job)[-1]
            how = golden.name.rpartition("-")[2]
            found[world.backend, how] = FORMS - stored_forms(manifest, golden / STORAGE)
    assert found == {
        ("rocksdb", "killed"): set(),
        ("memory", "stopped"): set(),
        ("rocksdb", "backfill"): {TOMBSTONES},
    }


def test_a_stored_form_changes_with_a_new_generation_only() -> None:
    golden = (STORAGES / str(NEWEST) / FORMATS).read_text(encoding="utf-8")
    assert describe_formats() == golden, (
        "What is stored has another form now. Older storages must restore all the same: give new "
        "fields a default, pin tags and names. Then write a new generation: make golden"
    )
