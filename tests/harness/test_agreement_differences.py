"""The comparison of `integration/agreement` finds each kind of difference: else it would prove
nothing.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from confluent_kafka import Message

from integration.agreement.cases import Case, Interleaves, in_value
from integration.agreement.outcome import Outcome, differences
from tidegate import Json, KafkaSink, KafkaSource, Pipeline, build


class Three(Pipeline, name="three"):
    source = KafkaSource("in", value=Json(dict[str, int]))
    exact = KafkaSink("exact", value=Json(dict[str, int]))
    twice = KafkaSink("twice", value=Json(dict[str, int]), guarantee="at_least_once")
    loose = KafkaSink("loose", value=Json(dict[str, int]), guarantee="none")

    def define(self) -> None:
        self.source.to(self.exact)
        self.source.to(self.twice)
        self.source.to(self.loose)


GRAPH = build(Three)
CASE = Case("three", Three, {})


def messages(*values: tuple[str, int]) -> list[Message]:
    return [
        Message(key=key.encode(), value=json.dumps({"n": number}).encode())
        for key, number in values
    ]


REFERENCE = Outcome(
    how="reference",
    messages={sink: messages(("a", 1), ("b", 1), ("a", 2)) for sink in ("exact", "twice", "loose")},
    state={"total": {b"a": b"2", b"b": b"1"}},
    positions={("source", "in", 0): 3},
)


def other(**changes: Any) -> Outcome:
    return dataclasses.replace(REFERENCE, how="other", **changes)


def with_sink(sink: str, *values: tuple[str, int], lossy: bool = False) -> Outcome:
    return other(messages={**REFERENCE.messages, sink: messages(*values)}, lossy=lossy)


AGREE = {
    "equal": other(),
    "order between groups": with_sink("exact", ("b", 1), ("a", 1), ("a", 2)),
    "repeated, at least once": with_sink("twice", ("a", 1), ("b", 1), ("a", 2), ("a", 1)),
    "lacking, no guarantee, killed": with_sink("loose", ("a", 1), lossy=True),
}
DIFFER = {
    "missing": with_sink("exact", ("a", 1), ("b", 1)),
    "doubled": with_sink("exact", ("a", 1), ("b", 1), ("a", 2), ("b", 1)),
    "order within a group": with_sink("exact", ("a", 2), ("b", 1), ("a", 1)),
    "another key": with_sink("exact", ("a", 1), ("c", 1), ("a", 2)),
    "another value": with_sink("exact", ("a", 1), ("b", 7), ("a", 2)),
    "missing, at least once": with_sink("twice", ("a", 1), ("b", 1)),
    "invented, at least once": with_sink("twice", ("a", 1), ("b", 1), ("a", 2), ("a", 3)),
    "lacking, no guarantee, not killed": with_sink("loose", ("a", 1)),
    "invented, no guarantee, killed": with_sink("loose", ("a", 9), lossy=True),
    "state lacks a key": other(state={"total": {b"a": b"2"}}),
    "state has another value": other(state={"total": {b"a": b"2", b"b": b"2"}}),
    "position": other(positions={("source", "in", 0): 2}),
}


@pytest.mark.parametrize("name", AGREE)
def test_equivalent_outcome_has_no_differences(name: str) -> None:
    assert differences(CASE, GRAPH, AGREE[name], REFERENCE) == []


@pytest.mark.parametrize("name", DIFFER)
def test_different_outcome_is_reported(name: str) -> None:
    assert len(differences(CASE, GRAPH, DIFFER[name], REFERENCE)) >= 1


def test_interleaving_output_is_compared_only_by_its_common_values() -> None:
    only = Interleaves("a reason", (in_value("n"),))
    case = dataclasses.replace(CASE, interleaves={"exact": only})
    assert not differences(case, GRAPH, with_sink("exact", ("c", 2), ("a", 1), ("a", 1)), REFERENCE)
    assert differences(case, GRAPH, with_sink("exact", ("c", 2), ("a", 1)), REFERENCE)


def test_records_of_one_key_may_change_places_if_they_are_in_different_groups() -> None:
    case = dataclasses.replace(CASE, groups={"exact": in_value("n")})
    swapped = with_sink("exact", ("a", 2), ("b", 1), ("a", 1))
    assert differences(case, GRAPH, swapped, REFERENCE), "1 is in one group, and a and b in it"
    assert not differences(case, GRAPH, with_sink("exact", ("a", 2), ("a", 1), ("b", 1)), REFERENCE)
