"""A drawn pipeline as a case of the agreement: its topics, and the records of its sinks again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import Message

from integration.agreement.cases import Case, Messages
from integration.agreement.drawn.draws import HEADER, Draw
from integration.agreement.drawn.judge import problems
from integration.agreement.drawn.parts import Event
from integration.agreement.drawn.records import Partitions, records_of
from integration.agreement.drawn.texts import HEADER_NAME, load, sinks_of, text_of
from integration.agreement.inputs import PARTITIONS, Dataset, Record, route_of_each_partition
from integration.agreement.outcome import Differences, Outcome, State, compare_state
from tidegate.dataplane.state.layout import name_part

_TIMERS: Final = tuple(map(name_part, ("turn", "deadline")))
"""The timers with names of `parts.Sorting`."""


def case_of(draw: Draw, folder: Path, *, size: int) -> Case:
    """Return the case of a draw. `size` is the approximate number of records of each source."""
    partitions = records_of(draw, size)
    inputs = {}
    for source in draw.sources:
        has_header = source.strategy.time == HEADER
        made = list(_records(source.name, partitions[source.name], has_header=has_header))
        inputs[source.name] = Dataset(partial(iter, made), size=len(made))
    return Case(f"drawn-{draw.seed}", load(draw, folder), inputs, text=text_of(draw))


def _records(
    source: str, partitions: Sequence[Sequence[Event]], *, has_header: bool
) -> Iterable[Record]:
    """Yield the records of all partitions, a few of each in turn."""
    routes = route_of_each_partition(source)
    for position in range(max(map(len, partitions))):
        for route, events in zip(routes, partitions, strict=True):
            for event in events[position : position + 1]:
                headers = ((HEADER_NAME, str(event.at_ms).encode()),) if has_header else ()
                value = msgspec.json.encode(event)
                yield Record(route, event.name.encode(), value, headers, event.at_ms or 0)


def assert_right(draw: Draw, inputs: Messages, outcomes: Sequence[Outcome]) -> None:
    """Judge the drained outputs of all runs. Compare the states before with that of the first run,
    where they cannot depend on the interleaving. A failure prints the pipeline.
    """
    found = []
    for outcome in outcomes:
        assert any(outcome.drained.values()), "the pipeline wrote nothing"
        found += found_wrong(draw, outcome, inputs)
        found += _other_states(draw, outcome, outcomes[0])
    assert not found, "\n".join([*found[:20], str(draw), text_of(draw)])


def _other_states(draw: Draw, outcome: Outcome, reference: Outcome) -> list[str]:
    differ = Differences()
    for step in draw.steps:
        if draw.has_exact_state(step):
            state, expected = outcome.state[step.uid], reference.state[step.uid]
            ordered = map(with_timers_in_order, (state, expected))
            compare_state(differ, step.uid, *ordered)
    return [f"{outcome.how} against {reference.how}, {each}" for each in differ.found]


def with_timers_in_order(state: State) -> State:
    """Return a state with the timers of each key in the order of their names.

    The timers of a key are one value: a byte, and the list of the key and its pairs of a name and a
    time. The pairs are in the order in which the function has set the timers.
    """
    found: State = {}
    for store_key, data in state.items():
        found[store_key] = data
        if store_key[2:].startswith(_TIMERS):
            key, timers = msgspec.msgpack.decode(data[1:])
            found[store_key] = data[:1] + msgspec.msgpack.encode([key, sorted(timers)])
    return found


def found_wrong(draw: Draw, outcome: Outcome, inputs: Messages) -> list[str]:
    """Return what is wrong with the drained outputs of a run."""
    partitions: Partitions = {}
    for source, messages in inputs.items():
        partitions[source] = [[] for _ in range(PARTITIONS)]
        for message in messages:
            number = message.partition()
            assert number is not None
            partitions[source][number].append(msgspec.json.decode(_value(message), type=Event))
    outputs: dict[str, list[Any]] = {
        sink: [msgspec.json.decode(_value(each), type=of) for each in outcome.drained[sink]]
        for sink, of in sinks_of(draw).items()
    }
    return [f"{outcome.how}: {each}" for each in problems(draw, partitions, outputs)]


def _value(message: Message) -> bytes:
    value = message.value()
    assert isinstance(value, bytes)
    return value
