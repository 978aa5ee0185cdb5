"""Whose code runs: tidegate's own, or that of a user. This module is pure.

A frame is known by its module. Where only the name of a file is known, as in a stack that
faulthandler has written, the file decides.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType
from typing import Final

_GENERATED: Final = ("<fused ", "<generated ")
"""The prefixes of the file names of generated code. Its globals have no module name."""
_OWN: Final = (f"{Path(__file__).parent}{os.sep}", *_GENERATED)


def is_own(frame: FrameType) -> bool:
    """Return whether the frame runs code of tidegate, or code that tidegate has generated."""
    return is_own_module(module_of(frame)) or frame.f_code.co_filename.startswith(_GENERATED)


def is_own_file(name: str) -> bool:
    """Return whether a file name is that of tidegate's code, or of code that it has generated.

    The package `tidegate_orders` of a user is installed in the same folder as that of tidegate.
    """
    return name.startswith(_OWN)


def is_own_module(name: str) -> bool:
    """Return whether a module belongs to tidegate."""
    return name.partition(".")[0] == "tidegate"


def module_of(frame: FrameType) -> str:
    """Return the name of the frame's module. Empty if it has none."""
    return str(frame.f_globals.get("__name__", ""))
