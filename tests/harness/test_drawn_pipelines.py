"""Drawn pipelines with event time: without a broker they have the results of a batch, and the judge
finds each kind of wrong output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration.agreement.drawn.cases import with_timers_in_order
from integration.agreement.drawn.draws import (
    CALENDAR,
    GLOBAL,
    KAFKA,
    ORDERED,
    PARTS,
    PUNCTUATED,
    REDUCED,
    SESSION,
    SESSION_OF,
    SIDES,
    SLIDING,
    TIMERS,
    TUMBLING,
    WINDOWS,
    Draw,
    StepDraw,
    draw,
)
from integration.agreement.drawn.hand_overs import KILLS, hand_over_of
from integration.agreement.drawn.in_process import judged, outputs_of
from integration.agreement.drawn.judge import problems, spans_of
from integration.agreement.drawn.parts import Event, Row
from integration.agreement.drawn.records import Partitions, records_of, usable
from integration.agreement.drawn.texts import text_of

SAMPLE = range(6)
SEEDS = range(150)
DRAWS = [draw(seed) for seed in range(300)]
STEPS = [step for each in DRAWS for step in each.steps]

Outputs = dict[str, list[Any]]


@pytest.mark.parametrize("seed", SAMPLE)
def test_drawn_pipeline_has_the_results_of_a_batch(seed: int, tmp_path: Path) -> None:
    judged(draw(seed), run=0, folder=tmp_path, count=60)


@pytest.mark.seeds
@pytest.mark.timeout(900)
def test_many_drawn_pipelines_have_the_results_of_a_batch(tmp_path: Path) -> None:
    for seed in SEEDS:
        judged(draw(seed), run=1, folder=tmp_path, count=60)


# --- what is drawn ------------------------------------------------------------------------------


def test_all_kinds_of_steps_windows_and_aggregates_are_drawn() -> None:
    assert {step.kind for step in STEPS} == {WINDOWS, TIMERS, SIDES}
    windows = [step for step in STEPS if step.windows is not None]
    kinds = Counter(step.windows.kind for step in windows if step.windows is not None)
    assert set(kinds) == {TUMBLING, SLIDING, SESSION, SESSION_OF, CALENDAR, GLOBAL}
    assert min(kinds.values()) >= 5
    assert {part for step in windows for part in step.parts} == {*PARTS, ORDERED, REDUCED}
    assert any(not step.by_key for step in windows)
    assert any(step.wider_ms for step in windows)
    assert any(step.lateness_ms for step in windows)
    firings = [step.firing for step in windows if step.firing is not None]
    assert any(each.repeatedly.endswith("ms") for each in firings)
    assert any(each.early and not each.accumulate for each in firings)
    assert any(each.late for each in firings)


def test_all_kinds_of_sources_are_drawn() -> None:
    sources = [source for each in DRAWS for source in each.sources]
    assert {source.strategy.time for source in sources} == {"field", "header", KAFKA}
    assert {source.strategy.kind for source in sources} == {"bounded", "monotonous", PUNCTUATED}
    assert any(source.strategy.idle and 0.0 in source.speeds for source in sources)
    assert any(source.bad for source in sources)
    assert 30 < sum(each.stamped_ms is not None for each in DRAWS) < 120
    assert 60 < sum(each.beyond for each in DRAWS) < 240
    assert {len(each.sources) for each in DRAWS} == {1, 2}


def test_a_seed_draws_the_same_pipeline_and_the_same_records_again() -> None:
    for seed in range(20):
        assert text_of(draw(seed)) == text_of(draw(seed))
        assert records_of(draw(seed), 30) == records_of(draw(seed), 30)


def test_within_the_bound_no_record_is_behind_its_partition_by_more_than_the_delay() -> None:
    late = edges = 0
    for each in DRAWS:
        for source in each.sources:
            for events in records_of(each, 60)[source.name]:
                newest_ms = 0
                for event in events:
                    if event.at_ms is None:
                        continue
                    behind_ms = newest_ms - event.at_ms - source.strategy.delay_ms
                    late += behind_ms > 0
                    edges += behind_ms == 0
                    assert each.beyond or behind_ms <= 0, (each.seed, event)
                    newest_ms = max(newest_ms, event.at_ms)
    assert late > 1_000
    assert edges > 1_000


def test_times_are_multiples_of_ten_and_gaps_are_not() -> None:
    for each in DRAWS:
        for event in usable(records_of(each, 30), filtered=False):
            assert event.at_ms is not None
            assert event.at_ms % 10 == 0
    for step in STEPS:
        if step.windows is not None and step.windows.kind == SESSION:
            assert step.windows.size_ms % 10


def test_hand_overs_change_the_parallelism_each_time_and_have_all_kills() -> None:
    drawn = [hand_over_of(seed) for seed in range(100)]
    assert {each.kill for each in drawn} == set(KILLS)
    for each in drawn:
        assert all(one != next_ for one, next_ in pairwise(each.parallelisms))
        assert all(0 < share < 1 for share in each.shares)


# --- the judge ----------------------------------------------------------------------------------

Case = tuple[Draw, Partitions, Outputs]


def first_draw(wanted: Callable[[Draw], bool]) -> Draw:
    return next(each for each in DRAWS if len(each.steps) == 1 and wanted(each))


def has_names(each: Draw) -> bool:
    (step,) = each.steps
    kinds = (TUMBLING, CALENDAR)
    fits = step.windows is not None and step.windows.kind in kinds and not step.lateness_ms
    return fits and step.firing is None and step.named is not None and each.stamped_ms is None


def is_plain(each: Draw) -> bool:
    (step,) = each.steps
    fits = step.windows is not None and step.windows.kind == SLIDING
    return fits and not each.beyond and "count" in step.parts


def run_of(wanted: Callable[[Draw], bool], folder: Path) -> Case:
    """A run whose outputs are right."""
    drawn = first_draw(wanted)
    partitions = records_of(drawn, 90)
    outputs = outputs_of(drawn, partitions, 0, folder)
    assert problems(drawn, partitions, outputs) == []
    return drawn, partitions, outputs


@pytest.fixture(scope="module")
def within(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return run_of(is_plain, tmp_path_factory.mktemp("within"))


@pytest.fixture(scope="module")
def beyond(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return run_of(lambda each: each.beyond and has_names(each), tmp_path_factory.mktemp("beyond"))


@pytest.fixture(scope="module")
def timers(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return run_of(
        lambda each: not each.beyond and each.steps[0].kind == TIMERS,
        tmp_path_factory.mktemp("timers"),
    )


def changed(case: Case, sink: str, change: Callable[[list[Any]], list[Any]]) -> list[str]:
    """Return the faults that the judge finds if the outputs of one sink are changed."""
    drawn, partitions, outputs = case
    name = f"{drawn.steps[0].uid}_{sink}"
    return problems(drawn, partitions, {**outputs, name: change(list(outputs[name]))})


def test_a_result_that_is_missing_is_found(within: Case, beyond: Case, timers: Case) -> None:
    for case in (within, beyond, timers):
        assert changed(case, "rows", lambda rows: rows[:-1])


def test_a_result_that_comes_twice_is_found(within: Case, beyond: Case, timers: Case) -> None:
    for case in (within, beyond, timers):
        assert changed(case, "rows", lambda rows: [*rows, rows[-1]])


def test_results_of_timers_in_another_order_are_found(timers: Case) -> None:
    assert changed(timers, "rows", lambda rows: rows[::-1])


def test_an_aggregate_that_is_wrong_is_found(within: Case) -> None:
    def one_more(rows: list[Row]) -> list[Row]:
        values = msgspec.json.decode(rows[0].values)
        values["count"] += 1
        text = msgspec.json.encode(values).decode()
        return [msgspec.structs.replace(rows[0], values=text), *rows[1:]]

    assert any("count of Row" in each for each in changed(within, "rows", one_more))


def test_a_record_that_is_in_a_window_and_late_is_found(beyond: Case) -> None:
    drawn, partitions, outputs = beyond
    late = {event.name for event in outputs[f"{drawn.steps[0].uid}_late"]}
    events = usable(partitions, filtered=drawn.filtered)
    in_time = next(event for event in events if event.name not in late)
    assert changed(beyond, "late", lambda found: [*found, in_time])


def test_a_record_that_is_nowhere_is_found(beyond: Case) -> None:
    assert beyond[2][f"{beyond[0].steps[0].uid}_late"]
    assert any("is in []" in each for each in changed(beyond, "late", lambda late: late[1:]))


def test_a_record_that_is_late_twice_is_found(beyond: Case) -> None:
    found = changed(beyond, "late", lambda late: [*late, late[0]])
    assert any("late twice" in each for each in found)


def test_a_record_within_the_bound_that_is_late_is_found(within: Case) -> None:
    event = usable(within[1], filtered=within[0].filtered)[0]
    assert any("within the bound" in each for each in changed(within, "late", lambda _: [event]))


def test_a_float_may_differ_in_its_last_digits_only(tmp_path: Path) -> None:
    case = run_of(lambda each: not each.beyond and "weights" in each.steps[0].parts, tmp_path)

    def scaled(by: float) -> Callable[[list[Row]], list[Row]]:
        def change(rows: list[Row]) -> list[Row]:
            values = msgspec.json.decode(rows[-1].values)
            values["weights"] *= by
            text = msgspec.json.encode(values).decode()
            return [*rows[:-1], msgspec.structs.replace(rows[-1], values=text)]

        return change

    assert not changed(case, "rows", scaled(1 + 1e-12))
    assert changed(case, "rows", scaled(1.001))


def test_states_with_the_same_timers_are_equal_in_whatever_order_they_were_set() -> None:
    def state(*timers: tuple[int, int]) -> dict[bytes, bytes]:
        return {b"\0\1\4turn\2aa": b"\0" + msgspec.msgpack.encode(["aa", timers])}

    ordered = with_timers_in_order(state((10, 10), (20, 20)))
    assert with_timers_in_order(state((20, 20), (10, 10))) == ordered
    assert with_timers_in_order(state((10, 10), (20, 30))) != ordered
    assert with_timers_in_order(state((10, 10))) != ordered


def test_local_days_of_the_judge_have_23_and_25_hours() -> None:
    def hours(zone: str, at_ms: int) -> float:
        step: StepDraw = next(
            step
            for step in STEPS
            if step.windows is not None
            and (step.windows.kind, step.windows.unit, step.windows.zone) == (CALENDAR, "day", zone)
        )
        assert step.windows is not None
        spans = spans_of(step.windows, Event("e", "k", 1, 0.0, at_ms))
        assert spans is not None
        ((start_ms, end_ms),) = spans
        return (end_ms - start_ms) / 3_600_000

    assert hours("Europe/Berlin", 1_711_846_800_000) == 23
    assert hours("Europe/Berlin", 1_711_846_800_000 + 86_400_000) == 24
    assert hours("Australia/Lord_Howe", 1_712_415_600_000) == 24.5
