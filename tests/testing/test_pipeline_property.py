"""Committed results do not depend on parallelism, batches, turns, checkpoints or crashes.

Method: drawn tests run twice, once without a crash and with one subtask, and once as drawn. Each
key's results must be equal, in their order, with the watermark that the function has seen. What is
not drawn: idle partitions. One that has returned from idleness behind the watermark holds it back
after a restore, and not before, in a job too.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from tests.testing.pipelines_under_test import (
    Click,
    Clicks,
    Order,
    Seen,
    Silence,
    Silences,
    Totals,
)
from tidegate.testing import PipelineTest, Setup

keys = st.sampled_from("abcde")
amounts = st.integers(-5, 5)
parallelisms = st.integers(1, 4)

orders = st.builds(Order, keys, amounts, st.just("s"))
clicks = st.builds(Click, keys, st.integers(0, 200))


def pushes(records: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(records, min_size=1, max_size=12)
    return st.tuples(st.just("push"), st.booleans(), st.integers(0, 2), some)


FAULTS = [
    st.just(("checkpoint",)),
    st.tuples(st.just("crash"), st.none() | parallelisms),
]
SETUPS = st.builds(
    Setup,
    parallelism=parallelisms,
    batch=st.integers(1, 5),
    seed=st.integers(0, 1000),
    checkpoint_every=st.sampled_from((0, 1, 4, 15)),
)


def steps(*others: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.one_of(*others, *FAULTS), max_size=25)


def fault(test: PipelineTest, step: Any) -> None:
    if step[0] == "checkpoint":
        test.checkpoint()
    elif step[0] == "crash":
        test.crash(parallelism=step[1])


def in_order(results: list[Any], key: str) -> dict[str, list[Any]]:
    by_key = defaultdict(list)
    for each in results:
        by_key[getattr(each, key)].append(each)
    return by_key


def totals(setup: Setup, drawn: list[Any], *, faults: bool) -> Any:
    with PipelineTest(Totals, setup) as test:
        for step in drawn:
            if step[0] == "push":
                test.source(Totals.orders, partition=step[2]).push(*step[3])
            elif faults:
                fault(test, step)
        last = test.sink(Totals.shops).read()[-1:]
        return in_order(test.sink(Totals.customers).read(), "customer"), last


def seen(setup: Setup, drawn: list[Any], *, faults: bool) -> dict[str, list[Seen]]:
    newest_ms = 0
    with PipelineTest(Clicks, setup) as test:
        for step in drawn:
            if step[0] == "push":
                _, other, partition, records = step
                source = Clicks.others if other else Clicks.clicks
                test.source(source, partition=partition).push(*records)
                newest_ms = max(newest_ms, *(each.at_ms for each in records))
            elif step[0] == "watermark":
                newest_ms += step[1]
                test.watermark(newest_ms)
            elif faults:
                fault(test, step)
        return in_order(test.sink(Clicks.seen).read(), "user")


def silences(setup: Setup, drawn: list[Any], *, faults: bool) -> dict[str, list[Silence]]:
    with PipelineTest(Silences, setup) as test:
        for step in drawn:
            if step[0] == "push":
                test.source(Silences.clicks, partition=step[2]).push(*step[3])
            elif faults:
                fault(test, step)
        test.watermark(1_000)
        return in_order(test.sink(Silences.silences).read(), "user")


@given(SETUPS, steps(pushes(orders)))
def test_running_totals_are_exact_at_any_parallelism_and_crash(
    setup: Setup, drawn: list[Any]
) -> None:
    assert totals(setup, drawn, faults=True) == totals(Setup(), drawn, faults=False)


@given(SETUPS, steps(pushes(clicks), st.tuples(st.just("watermark"), st.integers(0, 50))))
def test_what_was_late_stays_late_at_any_parallelism_and_crash(
    setup: Setup, drawn: list[Any]
) -> None:
    assert seen(setup, drawn, faults=True) == seen(Setup(), drawn, faults=False)


@given(SETUPS, steps(pushes(clicks)))
def test_event_timers_fire_once_at_any_parallelism_and_crash(
    setup: Setup, drawn: list[Any]
) -> None:
    assert silences(setup, drawn, faults=True) == silences(Setup(), drawn, faults=False)
