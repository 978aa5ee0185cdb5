"""Visits every state of a model, nearest first, and finds a shortest run to a violation.

States are remembered by their hashes of 64 bits. A collision could hide a state; at five million
states its chance is below one in a million.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

S = TypeVar("S")


class Violation(Exception):
    """An invariant does not hold."""


class Model(Protocol[S]):
    """States and the steps between them. Each method raises Violation where a rule is broken."""

    def initial(self) -> S:
        """The state before the first step."""
        ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Every step that is possible, by its label."""
        ...

    def check(self, state: S) -> None:
        """Checks what holds in every state."""
        ...

    def check_end(self, state: S) -> None:
        """Checks what holds in states without a possible step."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a search."""

    states: int
    violation: str = ""
    """Empty where every state is sound."""
    run: tuple[str, ...] = ()
    """The labels of a shortest run to the violation."""


def search(model: Model[S]) -> Result:
    """Visit all states, up to the first violation."""
    start = model.initial()
    parents: dict[int, tuple[int, str]] = {}
    level, seen = [start], {hash(start)}
    while level:
        following: list[S] = []
        for state in level:
            key = hash(state)
            try:
                model.check(state)
                stuck = True
                for label, after in model.steps(state):
                    stuck = False
                    number = hash(after)
                    if number not in seen:
                        seen.add(number)
                        parents[number] = key, label
                        following.append(after)
                if stuck:
                    model.check_end(state)
            except Violation as broken:
                return Result(len(seen), str(broken), _run(parents, key))
        level = following
    return Result(len(seen))


def _run(parents: dict[int, tuple[int, str]], key: int) -> tuple[str, ...]:
    labels: list[str] = []
    while key in parents:
        key, label = parents[key]
        labels.append(label)
    return tuple(reversed(labels))
