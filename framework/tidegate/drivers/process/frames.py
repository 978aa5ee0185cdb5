"""Whose code a frame of a stack runs: tidegate's own, or that of a user."""

from __future__ import annotations

from types import FrameType

from tidegate.protocol.errors import GENERATED


def is_own(frame: FrameType) -> bool:
    """Return whether the frame runs code of tidegate, or code that tidegate has generated.

    The globals of generated code have no module name.
    """
    return is_own_module(module_of(frame)) or frame.f_code.co_filename.startswith(GENERATED)


def is_own_module(name: str) -> bool:
    """Return whether a module belongs to tidegate."""
    return name.partition(".")[0] == "tidegate"


def module_of(frame: FrameType) -> str:
    """Return the name of the frame's module. Empty if it has none."""
    return str(frame.f_globals.get("__name__", ""))
