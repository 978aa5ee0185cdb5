"""Waits until a file of a project is saved, for `tidegate dev`.

The library watches folders through the operating system, so nothing is read while no file changes.
Folders are watched one by one and not recursively, because a virtual environment below the project
may have tens of thousands of folders. A new folder is an event of its parent, and the caller then
waits again with the folders of that time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUFFIXES: Final = frozenset({".py", ".toml", ".avsc"})
"""The files on which a pipeline can depend: code, settings and Avro schemas."""

_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules"})


def watched_folders(folder: Path) -> Iterator[Path]:
    """Yield the folder and all folders below it, without hidden ones and virtual environments."""
    for place, below, files in os.walk(folder):
        if "pyvenv.cfg" in files:
            below.clear()
            continue
        below[:] = sorted(name for name in below if name[0] != "." and name not in _LEFT_OUT)
        yield Path(place)


def wait_for_save(folder: Path, stop: threading.Event) -> frozenset[Path]:
    """Wait until files of the project are saved, added or removed, and return them. Return the
    empty set soon after `stop` is set.
    """
    from watchfiles import DefaultFilter, watch

    while not stop.is_set():
        folders = tuple(watched_folders(folder))
        changes = watch(
            *folders,
            watch_filter=DefaultFilter(),
            stop_event=stop,
            rust_timeout=200,
            recursive=False,
            raise_interrupt=False,
        )
        for each in changes:
            saved = {Path(path) for _, path in each if Path(path).suffix in SUFFIXES}
            if saved:
                return frozenset(saved)
            if any(Path(path).is_dir() for _, path in each):
                break  # a new folder has to be watched too
    return frozenset()
