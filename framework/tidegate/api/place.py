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


def user_place() -> str:
    """File and line of the nearest caller outside this package: where the user wrote the step."""
    frame = sys._getframe(1)  # noqa: SLF001 - cheap, where `inspect.stack` is not
    while frame.f_back is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        frame = frame.f_back
    file, folder = Path(frame.f_code.co_filename), Path.cwd()
    shown = file.relative_to(folder) if file.is_relative_to(folder) else file.name
    return f"{shown}:{frame.f_lineno}"


def refuse_later(what: str, instead: str) -> Never:
    """Raise the PipelineError of a feature that this version does not have; `instead` is the
    remedy.
    """
    raise PipelineError(f"{user_place()}: {what} comes in a later version of tidegate; {instead}")
