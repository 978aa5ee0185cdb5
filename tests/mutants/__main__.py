"""Prints in how many seeds each mutant is found: `python -m tests.mutants`."""

from __future__ import annotations

import importlib
from pathlib import Path

from tests.mutants.planting import Mutant, found_in


def mutants() -> list[Mutant]:
    """Of all modules here."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("test_*.py"))
    modules = [importlib.import_module(f"tests.mutants.{name}") for name in names]
    return [mutant for module in modules for mutant in getattr(module, "MUTANTS", [])]


if __name__ == "__main__":
    for mutant in mutants():
        print(f"{found_in(mutant):4} of {mutant.seeds:4}   {mutant.name}")
