"""Plants a mutant: swaps the code of functions for that of their changed source, for a while.

The function objects stay who they are, so whoever has imported one runs the changed code. An edit
whose text is not in the function exactly once fails: a mutant cannot outlive the code it was made
for unnoticed. A detector finds a mutant by the errors of a test or by our own checks; anything else
(a name that does not exist) is a mistake in the mutant, and is raised.
"""

from __future__ import annotations
import __future__

import contextlib
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import pytest

from tests.channels.test_flow import Broken
from tests.sim.traffic import Wrong
from tidegate.errors import TidegateError

Detector = Callable[[int], object]
"""Runs under a seed; raises if something is wrong."""

FOUND = (AssertionError, pytest.fail.Exception, Broken, Wrong, TidegateError)


@dataclass(frozen=True, slots=True)
class Edit:
    """In the source of `function`, `old` becomes `new`."""

    function: Callable[..., Any]
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug with a name, where it is, and who finds it."""

    name: str
    edits: tuple[Edit, ...]
    detector: Detector
    seeds: int
    """How many are tried."""
    found_min: int
    """In at least so many of them it is found; a deterministic detector finds it in all."""


@contextlib.contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run with the bug."""
    before: list[tuple[FunctionType, CodeType, dict[str, Any]]] = []
    try:
        for edit in mutant.edits:
            function = edit.function
            assert isinstance(function, FunctionType), f"{function} is no function of Python's"
            before.append((function, function.__code__, dict(function.__dict__)))
            function.__code__ = _edited(function, edit)
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


@functools.cache
def finds_nothing(detector: Detector, seeds: int) -> bool:
    """Whether the detector is content where nothing is planted; raises what it finds."""
    for seed in range(seeds):
        detector(seed)
    return True


def _finds(detector: Detector, seed: int) -> bool:
    try:
        detector(seed)
    except FOUND:
        return True
    return False


def _edited(function: FunctionType, edit: Edit) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    times = source.count(edit.old)
    assert times == 1, f"{edit.old!r} stands {times} times in {function.__qualname__}"
    module = compile(
        source.replace(edit.old, edit.new),
        inspect.getfile(function),
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    (code,) = (part for part in module.co_consts if isinstance(part, CodeType))
    assert code.co_freevars == function.__code__.co_freevars
    return code
