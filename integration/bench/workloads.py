"""Defines each workload of the benchmark: its pipeline, loop, expected output and goal.

The expected output is computed from the input alone, without the pipeline and without the loop. It
is generated and compared record by record, in order. So of two million records, only those that
were read back are in memory.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import msgspec

from integration.bench.data import GAP_MS, THRESHOLD, WINDOW_MS, Click, records

Record = tuple[bytes, bytes]
"""Key and value."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Click).decode


class Read(Protocol):
    """The part of a message that the check of an output uses."""

    def key(self) -> Any: ...
    def value(self) -> Any: ...
    def partition(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Workload:
    """One job, as a pipeline and as a loop."""

    name: str
    pipeline: str
    """Name of the class in `pipelines.py`."""
    sink: str
    """Name of the attribute of the sink in that class."""
    expected: Callable[[int], Iterator[Record]]
    """Function that yields the output expected from the first records of the input, in order."""
    loop: str
    """Name of the workload in `loop.py`."""
    in_order: Literal["partition", "key"] = "key"
    """Group of records in which the output must have the order of the input.

    Records of one key share a partition of the input and of the output. A keyed step guarantees
    only the order within a key.
    """
    goal: float | None = None
    """Goal: CPU per record in the slope, at most this multiple of the loop's."""
    tree_goal: float | None = None
    """Goal: CPU of the whole tree per record, between the first and the last commit: at most this
    many microseconds more than the multiple `goal` of the loop's.
    """
    broker_goal: float | None = None
    """Goal: CPU of the broker, at most this multiple of its CPU with the loop."""
    settings: Mapping[str, str] = field(default_factory=lambda: {"job.parallelism": "1"})


def _paying(count: int) -> Iterator[Record]:
    for key, value in records(count):
        click = _decode(value)
        if click.amount > THRESHOLD:
            fee = round(click.amount * 0.02, 2)
            yield key, _encode({**msgspec.structs.asdict(click), "fee": fee})


def _totals(count: int) -> Iterator[Record]:
    totals: dict[str, tuple[int, float]] = {}
    for key, value in records(count):
        click = _decode(value)
        paid_count, paid = totals.get(click.user, (0, 0.0))
        paid_count, paid = totals[click.user] = paid_count + 1, paid + click.amount
        yield key, _encode({"user": click.user, "count": paid_count, "total": paid})


def _windows(count: int) -> Iterator[Record]:
    """Yield a window at the user's first record after its end. The last windows are not yielded."""
    open_windows: dict[str, tuple[int, float]] = {}
    for key, value in records(count):
        click = _decode(value)
        start = click.ts - click.ts % WINDOW_MS
        known = open_windows.get(click.user, (start, 0.0))
        if known[0] != start:
            yield key, _encode({"user": click.user, "start": known[0], "total": known[1]})
            known = (start, 0.0)
        open_windows[click.user] = (start, known[1] + click.amount)


def _tumbling(count: int) -> Iterator[Record]:
    """Yield all windows of each user, in the order of their ends."""
    sums: dict[tuple[int, str], float] = {}
    for _, value in records(count):
        click = _decode(value)
        window = (click.ts - click.ts % WINDOW_MS, click.user)
        sums[window] = sums.get(window, 0.0) + click.amount
    for start, user in sorted(sums):
        yield user.encode(), _encode({"user": user, "start": start, "total": sums[start, user]})


def _sessions(count: int) -> Iterator[Record]:
    """Yield all sessions of each user, in the order of their ends."""
    sessions: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for _, value in records(count):
        click = _decode(value)
        of_user, end = sessions[click.user], click.ts + GAP_MS
        if of_user and click.ts <= of_user[-1][1]:
            start, _, total = of_user.pop()
            of_user.append((start, end, total + click.amount))
        else:
            of_user.append((click.ts, end, click.amount))
    for user, of_user in sessions.items():
        for start, end, total in of_user:
            yield user.encode(), _encode({"user": user, "start": start, "end": end, "total": total})


PER_SECOND: Final = 0.2
"""Goal: what a job pays per second, as microseconds per record at 1 s checkpoints."""
BROKER: Final = 1.1

TWO_SLOTS: Final = {"job.parallelism": "2", "taskmanager.slots": "2"}

WORKLOADS: Final[dict[str, Workload]] = {
    each.name: each
    for each in (
        Workload(
            *("passthrough", "Passthrough", "copies", records, "passthrough"),
            in_order="partition",
            goal=1.1,
            tree_goal=PER_SECOND,
            broker_goal=BROKER,
        ),
        Workload(
            *("transform", "Transform", "paying", _paying, "transform"),
            in_order="partition",
            goal=1.1,
            tree_goal=PER_SECOND,
            broker_goal=BROKER,
        ),
        Workload(
            *("total", "Totals", "totals", _totals, "total"),
            goal=1.3,
            tree_goal=PER_SECOND,
            broker_goal=BROKER,
        ),
        Workload("shuffle", "Totals", "totals", _totals, "total", settings=TWO_SLOTS),
        Workload("windows", "Windows", "windows", _windows, "windows"),
        Workload("tumbling", "Tumbled", "sums", _tumbling, "tumbling", goal=1.5),
        Workload("sessions", "Sessions", "sessions", _sessions, "sessions", goal=2.0),
    )
}

LOOP_SHAPE: Final = {"passthrough": 1.3, "transform": 1.55, "total": 2.95}
"""CPU seconds per million records of the loops, on the quiet machine where goals were set.

Earlier loops took 1.5, 1.8 and 3.3 there. In rounds that ran in turns, the present loops took 0.87,
0.86 and 0.9 times as long.
"""
SHAPE_TOLERANCE: Final = 0.25


CHECKED: Final = (
    "Every output was read back and compared with the output that the input requires: each record "
    "once, in the order of its partition, or of its key after a step by key."
)


def check_output(workload: Workload, messages: Sequence[Read], count: int) -> None:
    """Compare an output with the expected records.

    Raise RuntimeError if a record is missing, doubled, wrong or out of order. The messages of each
    partition must be in the order of their offsets.
    """
    home: dict[bytes, int | None] = {}
    found: dict[Any, deque[Record]] = defaultdict(deque)
    for message in messages:
        key, partition = message.key(), message.partition()
        if home.setdefault(key, partition) != partition:
            raise RuntimeError(
                f"{workload.name}: {key!r} is in the partitions {home[key]} and {partition}"
            )
        group = partition if workload.in_order == "partition" else key
        found[group].append((key, message.value()))
    for record in workload.expected(count):
        key = record[0]
        group = home.get(key) if workload.in_order == "partition" else key
        if not found[group] or found[group].popleft() != record:
            raise RuntimeError(_difference(workload, messages, count))
    if any(found.values()):
        raise RuntimeError(_difference(workload, messages, count))


def _difference(workload: Workload, messages: Sequence[Read], count: int) -> str:
    found = Counter((message.key(), message.value()) for message in messages)
    expected = Counter(workload.expected(count))
    missing, extra = expected - found, found - expected
    if not missing and not extra:
        return (
            f"{workload.name}: each record exists once, but some are out of order in their"
            f" {workload.in_order}"
        )
    return (
        f"{workload.name}: {missing.total()} records missing, {extra.total()} too many, e.g. "
        f"{next(iter(missing), None)} / {next(iter(extra), None)}"
    )


def slowness(loops: Mapping[str, float]) -> float:
    """Return the CPU of the loops as a multiple of that on the machine where goals were set."""
    return sum(loops[name] / usual for name, usual in LOOP_SHAPE.items()) / len(LOOP_SHAPE)


def deviations(loops: Mapping[str, float]) -> dict[str, float]:
    """Return the relative deviation of each loop from its known proportion to the others."""
    scale = slowness(loops)
    return {name: loops[name] / usual / scale - 1 for name, usual in LOOP_SHAPE.items()}
