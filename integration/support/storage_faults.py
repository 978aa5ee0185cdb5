"""Faults of a checkpoint storage that is a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def hanging(file: Path) -> Iterator[None]:
    """Make every open of a file for reading hang during the block, and restore the file at its end.

    The file is a named pipe meanwhile. A process that opens it hangs in the kernel, as on a disk
    that hangs or a mount whose server is gone.
    """
    aside, pipe = file.with_suffix(".aside"), file.with_suffix(".pipe")
    os.mkfifo(pipe)
    os.link(file, aside)
    pipe.replace(file)
    try:
        yield
    finally:
        aside.replace(file)
