"""The windows that a checkpoint stores are counted for each step, and no other state is."""

from __future__ import annotations

from pathlib import Path

from tests.simulator.stored_windows import stored_windows
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.drivers.memory.store import MemoryStore
from tidegate.ids import Attempt, CheckpointId, JobName, SubtaskIndex, Uid, VertexId
from tidegate.protocol.subtask_snapshot import KeyedSnapshot, StateFile, SubtaskSnapshot


def file_of(folder: Path, uid: str, rows: int) -> tuple[StateFile, bytes]:
    """A file of a store with this number of rows."""
    store = MemoryStore(folder / uid)
    store.write([(bytes([0, number]), b"row") for number in range(rows)], ())
    (path,) = store.checkpoint().files()
    data = path.read_bytes()
    return StateFile(name=path.name, path=f"files/{uid}", size=len(data), sha256=""), data


def test_rows_are_counted_by_step(tmp_path: Path) -> None:
    rows = {"windows": 3, "wider": 0, "number": 5}
    files = {uid: file_of(tmp_path, uid, count) for uid, count in rows.items()}
    keyed = tuple(
        KeyedSnapshot(
            uid=Uid(uid),
            backend="memory",
            first_key_group=0,
            last_key_group=7,
            files=(file,),
            schemas={},
        )
        for uid, (file, _) in files.items()
    )
    manifest = Manifest(
        job=JobName("windowed"),
        checkpoint=CheckpointId(Attempt(1), 1),
        submission_id="s",
        created_ms=0,
        final=True,
        kafka_cluster="c",
        fingerprint="f",
        plan=StateMetadata(parallelism=1, max_parallelism=8),
        subtasks=(SubtaskSnapshot(vertex=VertexId("v"), index=SubtaskIndex(0), keyed=keyed),),
    )
    objects = {f"windowed/{file.path}": data for file, data in files.values()}
    assert stored_windows(manifest, objects) == {"windows": 3}
