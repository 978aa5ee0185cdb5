"""Where in the user's code something was written, and the one refusal for what comes later.

Every error about a declaration or a step names the file and line of the user, never one of ours.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Never

from tidegate.errors import PipelineError

NOT_THE_USERS = (f"{Path(__file__).parents[1]}{os.sep}", "<frozen", functools.__file__)
"""How files of frames begin that are not the user's: ours, and the interpreter's between them."""


_code_folders: list[Path] = []
"""Where the code of this process was unpacked; files are shown by their path below it."""


def shown_below(folder: Path) -> None:
    """Show places in this folder as the user knows them, without the path of the folder. A process
    that runs many attempts says it as often.
    """
    if folder not in _code_folders:
        _code_folders.append(folder)


def user_location() -> str:
    """File and line of the nearest caller outside this package: where the user wrote the step."""
    frame = sys._getframe(1)  # noqa: SLF001 - cheap, where `inspect.stack` is not
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        frame = frame.f_back
    file = os.path.normpath(frame.f_code.co_filename)
    for folder in (*_code_folders, Path.cwd()):
        above = os.path.join(folder, "")  # noqa: PTH118 - a Path has no separator at its end
        if file.startswith(above):
            return f"{file[len(above) :]}:{frame.f_lineno}"
    return f"{Path(file).name}:{frame.f_lineno}"


def refuse_unsupported(what: str, instead: str) -> Never:
    """Raise the PipelineError of a feature that this version does not have; `instead` is the
    remedy.
    """
    raise PipelineError(
        f"{user_location()}: {what} comes in a later version of tidegate; {instead}"
    )
