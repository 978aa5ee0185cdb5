"""A step with one total per customer, which the tests of snapshots fill and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.dataplane.state.job import Step, declare
from tidegate.api.state.state import ValueState
from tidegate.protocol.subtask_snapshot import KeyedSnapshot

KEYS = [f"customer-{n}" for n in range(40)]

KEYS = [f"customer-{n}" for n in range(40)]


def rocksdb_step(folder: Path) -> Step:
    """With a cache that needs no flush of its own, which would make tables of its own."""
    states = declare(total=ValueState(int, default=0))
    return Step(folder, states, backend="rocksdb", cache_entries=100)


def add(step: Step, amount: int = 1) -> None:
    for key in KEYS:
        cell: Any = step.cells(key)[0]
        cell.value += amount


def totals(step: Step) -> list[Any]:
    return [step.cells(key)[0].value for key in KEYS]  # type: ignore[attr-defined]


def paths(snapshots: list[KeyedSnapshot]) -> set[str]:
    return {file.path for snapshot in snapshots for file in snapshot.files}


def only(files: set[str], ending: str) -> set[str]:
    return {path for path in files if path.endswith(ending)}
