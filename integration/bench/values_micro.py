"""Measures the CPU nanoseconds per record of checks and copies of records, without Kafka.

    python -m integration.bench.values_micro

A loop by hand runs in turns with each measurement, for comparison. It decodes a record of the same
class from JSON, makes another record and encodes it. Figures are those of the cheapest of many
short turns, because other load on the machine only adds cost.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pydantic

from tidegate import Json, Process
from tidegate.api.records.copying import copy_values, immutable
from tidegate.api.records.values import ClassCheck, fault
from tidegate.api.state.field_check import FieldCheck
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.operators.sampling import FIRST, sampled
from tidegate.dataplane.sources.kafka import BATCH_RECORDS
from tidegate.graph.stream_graph import MAIN, Node
from tidegate.stream_elements import RecordBatch, TopicPartition

BATCHES: Final = 40
TURNS: Final = 25


class FrozenClick(msgspec.Struct, frozen=True):
    user: str
    page: str
    ms: int
    cost: float


class Click(msgspec.Struct):
    user: str
    page: str
    ms: int
    cost: float


class TaggedClick(msgspec.Struct):
    user: str
    page: str
    ms: int
    tags: list[str]


@dataclasses.dataclass
class PlainClick:
    user: str
    page: str
    ms: int
    cost: float


@dataclasses.dataclass
class TaggedPlainClick:
    user: str
    page: str
    ms: int
    tags: list[str]


class ModelClick(pydantic.BaseModel):
    user: str
    page: str
    ms: int
    cost: float


CLASSES: Final[list[Any]] = [
    FrozenClick,
    Click,
    TaggedClick,
    PlainClick,
    TaggedPlainClick,
    ModelClick,
]


def main() -> None:
    """Print a table by record class, with the loop by hand, four checks of results, and a copy.

    The first check compares only classes. The second one also checks the fields of a sample, as in
    the cluster. The third one checks every field, as with `validate="all"`. The fourth one is that
    of `PipelineTest`. Then print the cost of the guard of the values that a function returns.
    """
    heads = ("by hand", "class", "sample", "all", "test", "copy")
    print(f"{'class':18}{''.join(f'{head:>8}' for head in heads)}   CPU ns a record")
    for of in CLASSES:
        encoded = _encoded(of)
        batches = [list(map(Json(of).decoder(), batch)) for batch in encoded]
        copies = _nothing if immutable(of) else copy_values  # the same decision as in `fan_out`
        cached = batches[:4]  # in the cache, as if their step had just made them
        check = sampled(of)
        for batch in batches[: FIRST // BATCH_RECORDS + 2]:
            check(batch)
        figures = cheapest(
            (_by_hand(of), encoded),
            (ClassCheck(of).first_wrong, cached * 10),
            (check, cached * 50),  # many batches, because a check samples only some of them
            (FieldCheck(of).first_wrong, cached * 10),
            (_every_field(of), batches[:1]),
            (copies, batches),
        )
        print(f"{of.__name__:18}{''.join(f'{figure:8.1f}' for figure in figures)}")
    numbers = [list(range(BATCH_RECORDS)) for _ in range(BATCHES)]
    for name, function in (("tuple", _as_tuple), ("list", _as_list), ("generator", _as_generator)):
        plain, guarded = cheapest((_plain_loop(function), numbers), (_process(function), numbers))
        print(f"process, {name:9}: {plain:.1f} by hand, {guarded:.1f} with the guard")


def cheapest(*cases: tuple[Callable[[Any], object], list[Any]]) -> list[float]:
    """Measure the cases in turns. Return CPU nanoseconds per record of each cheapest turn."""
    best = [float("inf")] * len(cases)
    for _ in range(TURNS):
        for number, (work, batches) in enumerate(cases):
            before = time.process_time_ns()
            for batch in batches:
                work(batch)
            spent = time.process_time_ns() - before
            best[number] = min(best[number], spent / sum(map(len, batches)))
    return best


def _nothing(_: object) -> None:
    """Do nothing, because records that cannot change are not copied."""


def _every_field(of: Any) -> Callable[[list[Any]], object]:
    return lambda batch: [fault(value, of) for value in batch]


def _as_tuple(value: int, _: object) -> Iterable[int]:
    return (value,)


def _as_list(value: int, _: object) -> Iterable[int]:
    return [value]


def _as_generator(value: int, _: object) -> Iterable[int]:
    yield value


def _plain_loop(function: Callable[[int, object], Iterable[int]]) -> Callable[[list[int]], object]:
    """The loop of `ProcessOperator` without the guard."""
    context = _Context()

    def loop(batch: list[int]) -> object:
        values: list[int] = []
        offsets: list[int] = []
        add_value, add_offset = values.append, offsets.append
        for value, offset in zip(iter(batch), batch, strict=False):
            context.offset = offset
            for result in function(value, context):
                add_value(result)
                add_offset(offset)
        return values

    return loop


class _Context:
    __slots__ = ("offset",)
    offset: int


def _process(function: Callable[[int, object], Iterable[int]]) -> Callable[[list[int]], object]:
    class Function(Process[int, int]):
        process = staticmethod(function)

    node = Node(
        id="process-1",
        kind="process",
        inputs=(),
        uid=None,
        options={},
        location="",
        function=Function(),
    )
    operator = ProcessOperator("P", node, {MAIN: _nothing}, now_ms=lambda: 0)
    topic_partition = TopicPartition("numbers", 0)
    return lambda batch: operator.process(RecordBatch(batch, batch, topic_partition))


def _encoded(of: Any) -> list[list[bytes]]:
    """Return batches of encoded records. No two records are equal."""
    encode = Json(of).encoder()
    last: Any = {"tags": ["a", "b"]} if "tags" in of.__annotations__ else {"cost": 0.25}
    return [
        [
            encode(of(user=f"user{n}", page=f"/page/{n}", ms=1000 + n, **last))
            for n in range(first, first + BATCH_RECORDS)
        ]
        for first in range(0, BATCHES * BATCH_RECORDS, BATCH_RECORDS)
    ]


def _by_hand(of: Any) -> Callable[[list[bytes]], object]:
    decode, encode = Json(of).decoder(), Json(of).encoder()
    last = "tags" if "tags" in of.__annotations__ else "cost"

    def loop(batch: list[bytes]) -> list[bytes]:
        written = []
        for data in batch:
            click: Any = decode(data)
            changed = {last: getattr(click, last)}
            made = of(user=click.user, page=click.page, ms=click.ms + 1, **changed)
            written.append(encode(made))
        return written

    return loop


if __name__ == "__main__":
    main()
