"""Fixtures of the checkpoint room's tests."""

from __future__ import annotations

import sys

import pytest

from tests.checkpoint.mutants import Patch

ROOM = "tidegate.checkpoint"


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Replace a function of the room, or of its procedures, by its module and name."""

    def set_(name: str, mutant: object) -> None:
        module, function = name.split(".")
        homes = [f"{ROOM}.procedures.{module}", f"{ROOM}.{module}"]
        home = next(sys.modules[full] for full in homes if full in sys.modules)
        monkeypatch.setattr(home, function, mutant)

    return set_
