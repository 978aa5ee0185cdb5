"""Fixtures for tests of the commit protocol."""

from __future__ import annotations

import pytest

from tests.commit.mutants import Patch, patching


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """Replace a function of the room `commit`, by its module and name."""
    return patching(monkeypatch)
