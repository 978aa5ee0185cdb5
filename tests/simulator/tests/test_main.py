"""The command of the simulator: what it refuses, and its exit codes."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from tests.simulator import __main__ as simulator


def run(*words: str) -> Result:
    return CliRunner().invoke(simulator.app, list(words))


@pytest.mark.parametrize("seeds", ["5..3", "5..5"])
def test_empty_range_of_seeds_is_refused(seeds: str) -> None:
    result = run("--seeds", seeds)
    assert result.exit_code == 2
    assert f"--seeds '{seeds}' is empty" in result.output


@pytest.mark.parametrize("seeds", ["7", "..", "a..b", "1..b", "-1..5"])
def test_seeds_that_are_not_a_range_are_refused(
    monkeypatch: pytest.MonkeyPatch, seeds: str
) -> None:
    monkeypatch.setattr(simulator, "_many", lambda *_, **__: False)
    result = run("--seeds", seeds)
    assert result.exit_code == 2
    assert f"--seeds '{seeds}' is not a range: write A..B, or A.. to" in result.output


def test_exit_code_is_1_after_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    for violated in (False, True):
        monkeypatch.setattr(simulator, "_replay", lambda *_, violated=violated, **__: violated)
        assert run("--seed", "1").exit_code == violated
