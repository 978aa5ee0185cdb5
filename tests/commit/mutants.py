"""How a deliberate fault of the protocol is put in place, and found by the world's checks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.commit.masters import simulate
from tests.commit.world import Rules, Violation

ROOM = "tidegate.commit"
MUTANT_SEEDS = 1_500
"""Within so many runs each mutant is caught; most need a few."""

Patch = Callable[[str, object], None]
"""Replaces a function of the room `commit`, by the name of its module and its own."""


def caught(run: Callable[[int], object], *, saying: str = "") -> Violation:
    """The first violation that the checks find in a mutant, or the first that says so: a fault may
    come to light in several ways.
    """
    for seed in range(MUTANT_SEEDS):
        try:
            run(seed)
        except Violation as found:
            if saying in str(found):
                return found
    pytest.fail(f"the mutant survived {MUTANT_SEEDS} runs")


def patching(monkeypatch: pytest.MonkeyPatch) -> Patch:
    """A `Patch` that lasts as long as pytest's own."""

    def set_(name: str, mutant: object) -> None:
        module, _, function = name.rpartition(".")
        monkeypatch.setattr(sys.modules[f"{ROOM}.{module}"], function, mutant)

    return set_


def with_rules(**rules: Any) -> Callable[[int], object]:
    """Runs with other rules."""
    return lambda seed: simulate(seed, Rules(**rules))
