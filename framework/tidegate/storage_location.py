"""The one rule for the place of a checkpoint storage: it is a URL, or the path of a folder.

A relative path starts at a folder that the caller knows: the working folder of the job, or the
folder in which a command runs. This module opens nothing; `drivers/storage` does.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.config import Config


def is_url(storage: str) -> bool:
    """Return whether `checkpoint.dir` is a URL, and not the path of a folder."""
    return "://" in storage


def with_absolute_folders(config: Config, folder: Path) -> Config:
    """Return the configuration of a cluster, in which the folders of checkpoints and of logs are
    absolute: relative ones start at `folder`.

    Its processes run user code, which may change the working folder. Local state has its place in
    the working folder of the job, which is absolute.
    """
    checkpoint = replace(config.checkpoint, dir=locate(config.checkpoint.dir, folder))
    logs = replace(config.logs, dir=str(Path(folder, config.logs.dir)))
    return replace(config, checkpoint=checkpoint, logs=logs)


def locate(storage: str, folder: Path | str) -> str:
    """Return the URL of a storage unchanged, or the path of its folder, seen from `folder`."""
    return storage if is_url(storage) else str(Path(folder, storage))
