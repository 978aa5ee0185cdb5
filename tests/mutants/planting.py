"""Plants a mutant: swaps the code of functions for that of their changed source, for a while.

The function objects stay the same, so a module that has imported one runs the changed code. An edit
fails if its text is not in the function exactly once. A mutant therefore cannot outlive unnoticed
the code for which it was made.

A detector finds a mutant by the errors of a test or by our own checks. Any other error, such as a
name that does not exist, is a mistake in the mutant, and is raised.
"""

from __future__ import annotations
import __future__

import contextlib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.dataplane.channels.test_flow import Broken
from tests.simulator.tests.traffic import Wrong
from tidegate.errors import TidegateError

Detector = Callable[[int], object]
"""Runs under a seed; raises if something is wrong."""

COSTLY: set[Detector] = set()
"""Those that simulate whole clusters (`finders.py`)."""

COSTLY_MARKS = (pytest.mark.seeds, pytest.mark.timeout(600))

FOUND = (AssertionError, pytest.fail.Exception, Broken, Wrong, TidegateError)


@dataclass(frozen=True, slots=True)
class Edit:
    """In the source of `function`, `old` becomes `new`. Made where a module is imported, so that
    code that has moved on is noticed also where the mutant is not planted (`make check`).
    """

    function: Callable[..., Any]
    old: str
    new: str

    def __post_init__(self) -> None:
        times = _source(self.function).count(self.old)
        assert times == 1, f"{self.old!r} stands {times} times in {self.function.__qualname__}"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug with a name, where it is, and who finds it."""

    name: str
    edits: tuple[Edit, ...]
    detector: Detector
    seeds: int
    """The number of seeds that are tried."""
    found_min: int
    """In at least so many of them it is found; a deterministic detector finds it in all. 0: this
    detector is too slow or too weak to stand for it, another does; it is measured all the same."""
    variant: str = ""
    """Its name in the table of the protocol's model, if it is there."""


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run with the bug."""
    before: list[tuple[FunctionType, CodeType, dict[str, Any]]] = []
    try:
        for function in dict.fromkeys(edit.function for edit in mutant.edits):
            assert isinstance(function, FunctionType), f"{function} is no function of Python's"
            before.append((function, function.__code__, dict(function.__dict__)))
            edits = [edit for edit in mutant.edits if edit.function is function]
            function.__code__ = _edited(function, edits)
        yield
    finally:
        for function, code, attributes in reversed(before):
            function.__code__ = code
            function.__dict__.clear()  # where some mutants keep what they share
            function.__dict__.update(attributes)


def found_in(mutant: Mutant) -> int:
    """In how many seeds the detector finds the planted mutant."""
    with planted(mutant):
        return sum(_finds(mutant.detector, seed) for seed in range(mutant.seeds))


def assert_found(mutant: Mutant) -> None:
    """It is found often enough, and nothing is in the same seeds without it."""
    found = tried = 0
    with planted(mutant):
        while found < mutant.found_min and tried < mutant.seeds:
            found += _finds(mutant.detector, tried)
            tried += 1
    assert found >= mutant.found_min, f"found in {found} of {tried} seeds"
    assert finds_nothing(mutant.detector, tried)


def mutant_params(mutants: Iterable[Mutant]) -> list[Any]:
    """Without those of which it is only measured how often their detector finds them; those of a
    costly one are left out of `make check`.
    """
    return [
        pytest.param(
            mutant,
            id=mutant.name,
            marks=COSTLY_MARKS if mutant.detector in COSTLY else (),
        )
        for mutant in mutants
        if mutant.found_min
    ]


def finds_nothing(detector: Detector, seeds: int) -> bool:
    """Whether the detector is content where nothing is planted; raises what it finds."""
    return all(_is_content(detector, seed) for seed in range(seeds))


@functools.cache
def _is_content(detector: Detector, seed: int) -> bool:
    detector(seed)
    return True


def _finds(detector: Detector, seed: int) -> bool:
    try:
        detector(seed)
    except FOUND:
        return True
    return False


def _edited(function: FunctionType, edits: Sequence[Edit]) -> CodeType:
    source = _source(function)
    for edit in edits:
        assert edit.old in source, f"an edit before has changed {edit.old!r}"
        source = source.replace(edit.old, edit.new)
    module = compile(
        source,
        inspect.getfile(function),
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    (code,) = (part for part in module.co_consts if isinstance(part, CodeType))
    assert code.co_freevars == function.__code__.co_freevars
    return code


def _source(function: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(function))
