"""The one rule for the place of a checkpoint storage: it is a URL, or the path of a folder.

A relative path starts at a folder that the caller knows: the working folder of the job, or the
folder in which a command runs. This module opens nothing; `drivers/storage` does.
"""

from __future__ import annotations

from pathlib import Path


def is_url(storage: str) -> bool:
    """Return whether `checkpoint.dir` is a URL, and not the path of a folder."""
    return "://" in storage


def locate(storage: str, folder: Path | str) -> str:
    """Return the URL of a storage unchanged, or the path of its folder, seen from `folder`."""
    return storage if is_url(storage) else str(Path(folder, storage))
