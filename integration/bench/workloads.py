"""The workloads of the benchmark: which pipeline, which loop, what must come out, what is aimed at.

What must come out is computed from the input alone, by neither of the two that are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from integration.bench.data import THRESHOLD, WINDOW_MS, Click, records

Expected = Counter[tuple[bytes, bytes]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Click).decode


@dataclass(frozen=True, slots=True)
class Workload:
    """One job, as a pipeline and as a loop."""

    name: str
    pipeline: str
    """Class in `pipelines.py`."""
    sink: str
    """Its attribute there."""
    expected: Callable[[int], Expected]
    """Key and value of what the first so many records lead to."""
    loop: str
    """Name in `loop.py`."""
    goal: float | None = None
    """At most so many times the loop's CPU per record."""
    settings: Mapping[str, str] = field(default_factory=lambda: {"job.parallelism": "1"})


def _copies(count: int) -> Expected:
    return Counter(records(count))


def _paying(count: int) -> Expected:
    def rows() -> Iterator[tuple[bytes, bytes]]:
        for key, value in records(count):
            click = _decode(value)
            if click.amount > THRESHOLD:
                fee = round(click.amount * 0.02, 2)
                yield key, _encode({**msgspec.structs.asdict(click), "fee": fee})

    return Counter(rows())


def _totals(count: int) -> Expected:
    def rows() -> Iterator[tuple[bytes, bytes]]:
        totals: dict[str, tuple[int, float]] = {}
        for key, value in records(count):
            click = _decode(value)
            paid_count, paid = totals.get(click.user, (0, 0.0))
            paid_count, paid = totals[click.user] = paid_count + 1, paid + click.amount
            yield key, _encode({"user": click.user, "count": paid_count, "total": paid})

    return Counter(rows())


def _windows(count: int) -> Expected:
    """A window is out when the user's first record behind its end comes; the last ones stay in."""

    def rows() -> Iterator[tuple[bytes, bytes]]:
        open_windows: dict[str, tuple[int, float]] = {}
        for key, value in records(count):
            click = _decode(value)
            start = click.ts - click.ts % WINDOW_MS
            known = open_windows.get(click.user, (start, 0.0))
            if known[0] != start:
                yield key, _encode({"user": click.user, "start": known[0], "total": known[1]})
                known = (start, 0.0)
            open_windows[click.user] = (start, known[1] + click.amount)

    return Counter(rows())


TWO_SLOTS: Final = {"job.parallelism": "2", "taskmanager.slots": "2"}

WORKLOADS: Final[dict[str, Workload]] = {
    each.name: each
    for each in (
        Workload("passthrough", "Passthrough", "copies", _copies, "passthrough", goal=1.1),
        Workload("transform", "Transform", "paying", _paying, "transform", goal=1.1),
        Workload("total", "Totals", "totals", _totals, "total", goal=1.3),
        Workload("shuffle", "Totals", "totals", _totals, "total", settings=TWO_SLOTS),
        Workload("windows", "Windows", "windows", _windows, "windows"),
    )
}

LOOP_SHAPE: Final = {"passthrough": 1.5, "transform": 1.8, "total": 3.3}
"""CPU seconds per million of the loops on the quiet machine where the goals were set."""
SHAPE_TOLERANCE: Final = 0.25


def check_output(workload: Workload, messages: list[Any], count: int) -> None:
    """Compare with what the input says; RuntimeError where anything is missing, doubled or
    wrong.
    """
    found = Counter((message.key(), message.value()) for message in messages)
    expected = workload.expected(count)
    if found != expected:
        missing, extra = expected - found, found - expected
        raise RuntimeError(
            f"{workload.name}: {missing.total()} records missing, {extra.total()} too many, e.g. "
            f"{next(iter(missing), None)} / {next(iter(extra), None)}"
        )


def slowness(loops: Mapping[str, float]) -> float:
    """How many times as long this machine takes for the loops as that where the goals were set."""
    return sum(loops[name] / usual for name, usual in LOOP_SHAPE.items()) / len(LOOP_SHAPE)


def deviations(loops: Mapping[str, float]) -> dict[str, float]:
    """By which share each loop is off its known proportion to the others."""
    scale = slowness(loops)
    return {name: loops[name] / usual / scale - 1 for name, usual in LOOP_SHAPE.items()}
