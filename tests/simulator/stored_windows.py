"""The windows that a checkpoint of a simulated job stores.

A window that stays in state after it was removed never fires again: no output shows it. So the
checker looks at the files of the state themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tidegate.checkpoint.manifest import Manifest
from tidegate.drivers.memory.store import MemoryStore
from tidegate.protocol.subtask_snapshot import StateFile

WINDOW_UIDS: Final = ("windows", "wider")
"""The uids of the steps with windows in `window_pipelines.py`."""
_END: Final = b"\xff\xff"
"""A key behind all keys of a store: they begin with the number of a key group."""


def stored_windows(manifest: Manifest, objects: Mapping[str, bytes]) -> dict[str, int]:
    """Return how many rows each step with windows stores, if it stores any. `objects` are the
    files of the checkpoint storage.
    """
    found: dict[str, int] = {}
    for subtask in manifest.subtasks:
        for keyed in subtask.keyed:
            if keyed.uid in WINDOW_UIDS:
                rows = sum(
                    _rows(objects[f"{manifest.job}/{each.path}"], each) for each in keyed.files
                )
                if rows:
                    found[keyed.uid] = found.get(keyed.uid, 0) + rows
    return found


def _rows(data: bytes, file: StateFile) -> int:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, file.name).write_bytes(data)
        return len(list(MemoryStore(Path(folder)).scan(b"", _END)))
