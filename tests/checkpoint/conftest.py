"""Fixtures of the checkpoint room's tests."""

from __future__ import annotations

import pytest

from tests.checkpoint.mutants import Patch, patching


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Replace a function of the room, or of its procedures, by its module and name."""
    return patching(monkeypatch)
