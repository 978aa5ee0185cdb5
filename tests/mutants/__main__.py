"""Measures in how many seeds each mutant is found: `python -m tests.mutants [--write]`.

With `--write` the table goes into `docs/evidence/mutants.md`. Besides the mutants of the modules
here it measures those that `tests/commit/test_*_in_a_world.py` patch in: there each `caught` is
a run over seeds, whatever else the test says of what was found.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.commit.mutants import MUTANT_SEEDS, patching
from tests.commit.world import Violation
from tests.mutants.planting import Mutant, found_in

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "mutants.md"
BEGIN = "<!-- by python -m tests.mutants --write -->"
WORLD_SEEDS = 100
IN_A_WORLD = {
    "test_protocol_in_a_world": {
        "a_publication_does_not_look_for_a_newer_claim": "publication not through the journal",
        "claim_does_not_read_back_the_entry_at_its_number": "claim after read",
        "transactions_are_ended_before_the_publication": "EndTxn before publication",
        "recovery_fences_listed_ids_before_it_ends_their_transactions": "fence before commit",
        "recovery_fences_committed_ids_before_they_are_settled": "fence named ids",
        "a_sweep_fences_newer_attempts": "sweep newer attempts",
        "publication_does_not_carry_unended_transactions": "unended not carried",
        "failed_checkpoint_drops_its_prepared_transactions": "aborted checkpoint drops prepared",
        "an_unknown_create_is_taken_for_a_failure": "unknown create is failure",
        "transactional_id_is_reused_once_committed_and_not_settled": "slot reuse once committed",
        "lost_transaction_is_taken_for_committed": "loss ignored",
        "nothing_is_fenced": "no fencing",
    },
    "test_rollback_in_a_world": {
        "publication_is_rolled_back_after_a_commit": "retract after a commit",
    },
    "test_truncation_in_a_world": {
        "create_at_a_truncated_number_counts": "journal trimmed",
    },
}
"""The model's names of those that it has."""


WORLDS = {
    "test_protocol_in_a_world": "",
    "test_rollback_in_a_world": ", with timeouts",
    "test_truncation_in_a_world": ", trimming",
}


class Row(NamedTuple):
    """A row of the table."""

    name: str
    variant: str
    finder: str
    found: int
    seeds: int

    def __str__(self) -> str:
        return f"| {self.name} | {self.variant} | {self.finder} | {self.found} of {self.seeds} |"


def planted_mutants() -> Iterator[Row]:
    """The rows of the mutants in all modules of this folder."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"tests.mutants.{path.stem}")
        for mutant in getattr(module, "MUTANTS", []):
            yield Row(mutant.name, mutant.variant, finder(mutant), found_in(mutant), mutant.seeds)


def finder(mutant: Mutant) -> str:
    """The name by which a reader finds the detector."""
    detector = mutant.detector
    if hasattr(detector, "__wrapped__") and detector.__name__.startswith("test_"):
        return f"`{detector.__module__.split('.')[-1]}.{detector.__name__}`"
    return (detector.__doc__ or detector.__name__).splitlines()[0]


def world_mutants() -> Iterator[Row]:
    """The rows of the mutants of the protocol's world."""
    for name, variants in IN_A_WORLD.items():
        module = importlib.import_module(f"tests.commit.{name}")
        for test in [each for each in vars(module) if each.startswith("test_mutant_")]:
            short = test.removeprefix("test_mutant_")
            found, seeds = _found_in_world(module, getattr(module, test))
            what = f"the protocol's world{WORLDS[name]}"
            yield Row(short.replace("_", " "), variants.get(short, ""), what, found, seeds)
        missing = {each for each in variants if not hasattr(module, f"test_mutant_{each}")}
        assert not missing, missing


def _found_in_world(module: ModuleType, test: Callable[..., None]) -> tuple[int, int]:
    """In how many of how many seeds; where a hundred are not enough, up to the first find."""
    found: list[tuple[int, int]] = []

    def counted(run: Callable[[int], object], *, saying: str = "") -> Violation:
        seeds = WORLD_SEEDS
        times = sum(_is_caught(run, seed, saying) for seed in range(seeds))
        while not times and seeds < MUTANT_SEEDS:
            times += _is_caught(run, seeds, saying)
            seeds += 1
        found.append((times, seeds))
        return Violation("counted")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(module, "caught", counted)
        names = test.__code__.co_varnames[: test.__code__.co_argcount]
        with contextlib.suppress(AssertionError):  # what is said of the violation itself
            test(*[patching(monkeypatch) for _ in names])
    return found[0]


def _is_caught(run: Callable[[int], object], seed: int, saying: str) -> bool:
    try:
        run(seed)
    except Violation as found:
        return saying in str(found)
    return False


def main() -> None:
    """Print, and write."""
    lines = []
    for rows in (world_mutants, planted_mutants):
        for row in rows():
            print(row, flush=True)
            lines.append(str(row))
    if "--write" in sys.argv[1:]:
        head, _, _ = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        table = ["| mutant | in the model | found by | seeds |", "| --- | --- | --- | --- |"]
        PAGE.write_text("\n".join([head + BEGIN, *table, *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
