"""The location of a declaration in the user's code, and the error for unsupported features.

Every error about a declaration or a step names a file and line of the user's code, and never one
of tidegate's own.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Never

from tidegate.errors import PipelineError

FRAMEWORK_PATHS = (
    f"{Path(__file__).parents[2]}{os.sep}",
    "<frozen",
    functools.__file__,
    contextlib.__file__,
)
"""Prefixes of the files whose frames are not the user's: tidegate's files, and the interpreter's
files whose frames are between them.
"""


_code_folders: list[Path] = []
"""Folders into which the code of this process was unpacked; locations show paths below them."""


def show_paths_below(folder: Path) -> None:
    """Show locations in this folder as the user knows them, without the path of the folder.

    A process that runs many attempts calls this for each of them.
    """
    if folder not in _code_folders:
        _code_folders.append(folder)


def user_location() -> str:
    """Return file and line of the nearest caller outside tidegate, which is in the user's code."""
    frame = sys._getframe(1)  # noqa: SLF001 - cheap, where `inspect.stack` is not
    while frame.f_back is not None and frame.f_code.co_filename.startswith(FRAMEWORK_PATHS):
        frame = frame.f_back
    file = os.path.normpath(frame.f_code.co_filename)
    for folder in (*_code_folders, Path.cwd()):
        above = os.path.join(folder, "")  # noqa: PTH118 - a Path has no separator at its end
        if file.startswith(above):
            return f"{file[len(above) :]}:{frame.f_lineno}"
    return f"{Path(file).name}:{frame.f_lineno}"


@contextlib.contextmanager
def at_user_location() -> Iterator[None]:
    """Put file and line of the user's code in front of a PipelineError of the `with` block."""
    try:
        yield
    except PipelineError as error:
        raise PipelineError(f"{user_location()}: {error}") from error.__cause__


def refuse_unsupported(what: str, instead: str) -> Never:
    """Raise the PipelineError for a feature that this version does not have.

    `instead` is the remedy.
    """
    remedy = instead[0].upper() + instead[1:]
    raise PipelineError(f"{user_location()}: {what} is not supported. {remedy}.")
