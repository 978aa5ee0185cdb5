"""What may change about windows under one uid, and what a submit refuses, with real pipelines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.checkpoint.test_restore import checkpoint
from tidegate import (
    AfterWatermark,
    BoundedOutOfOrderness,
    Calendar,
    Collect,
    Count,
    EveryCount,
    Json,
    KafkaSink,
    KafkaSource,
    Pipeline,
    Session,
    Sliding,
    Sum,
    Tumbling,
    build,
)
from tidegate.api.state.evolution import same_key_type, state_conflict
from tidegate.checkpoint.state_changes import SchemaRules, step_refusals
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.config import Config
from tidegate.controlplane.journal.job_plan import state_metadata
from tidegate.errors import RefusedError
from tidegate.graph.plan import plan
from tidegate.protocol.subtask_snapshot import KEY_TYPE

RULES = SchemaRules(conflict=state_conflict, same_keys=same_key_type)


class Sale(msgspec.Struct, frozen=True):
    shop: str
    number: int
    amount: int
    weight: float
    at_ms: int


def amount() -> Any:
    return Sum(lambda sale: sale.amount, returns=int)


def windows(
    assigner: Callable[[], Any] = lambda: Tumbling("1 h"),
    *aggregates: Callable[[], Any],
    key: Callable[[Any], Any] = lambda sale: sale.shop,
    delay: str = "1 s",
    into: Callable[..., Any] = lambda w, *_: w.start_ms,
    all_records: bool = False,
    **options: Any,
) -> StateMetadata:
    class Sales(Pipeline, name="sales"):
        sales = KafkaSource(
            "sales",
            value=Json(Sale),
            event_time=lambda sale: sale.at_ms,
            watermarks=BoundedOutOfOrderness(delay),
        )
        out = KafkaSink("out", value=Json(int))

        def define(self) -> None:
            stream: Any = self.sales
            made = (
                stream.window_all(assigner(), **options)
                if all_records
                else stream.key_by(key).window(assigner(), **options)
            )
            each = [one() for one in aggregates or (amount, Count)]
            made.aggregate(*each, into=into, uid="w").to(self.out)

    graph = build(Sales)
    return state_metadata(graph, plan(graph, 2, 128), Config())


def refuse(old: StateMetadata, new: StateMetadata) -> None:
    for refusal in refusals(old, new):
        raise refusal


def refusals(old: StateMetadata, new: StateMetadata) -> list[RefusedError]:
    (step,) = old.steps
    schemas = {name: [schema] for name, schema in step.states.items()}
    manifest = checkpoint(old, schemas={**schemas, KEY_TYPE: [step.key_schema]})
    subtasks = [
        msgspec.structs.replace(
            one, keyed=tuple(msgspec.structs.replace(k, uid=step.uid) for k in one.keyed)
        )
        for one in manifest.subtasks
    ]
    changed = msgspec.structs.replace(manifest, subtasks=tuple(subtasks))
    return list(step_refusals(changed, new, RULES))


MAY_CHANGE: dict[str, Callable[[], StateMetadata]] = {
    "nothing": windows,
    "size": lambda: windows(lambda: Tumbling("2 h", offset="1 min")),
    "lateness": lambda: windows(allowed_lateness="1 d"),
    "trigger": lambda: windows(trigger=AfterWatermark(early=EveryCount(5), accumulate=False)),
    "watermarks": lambda: windows(delay="1 min"),
    "into": lambda: windows(into=lambda w, total, count: count),
    "fewer aggregates": lambda: windows(lambda: Tumbling("1 h"), amount),
}

MUST_NOT: dict[str, tuple[Callable[[], StateMetadata], str]] = {
    "kind": (lambda: windows(lambda: Session("1 h")), "windows was tumbling and is session"),
    "clock": (
        lambda: windows(lambda: Tumbling("1 h", time="processing")),
        "time was event and is processing",
    ),
    "calendar": (lambda: windows(lambda: Calendar("day", zone="UTC")), "is calendar"),
    "key": (lambda: windows(key=lambda sale: sale.number), "is keyed by int"),
    "no key": (lambda: windows(all_records=True), "keys was not set and is none"),
    "aggregate": (
        lambda: windows(lambda: Tumbling("1 h"), lambda: Sum(lambda sale: sale.weight), Count),
        "cannot all be read as its present type",
    ),
    "another aggregate": (
        lambda: windows(lambda: Tumbling("1 h"), amount, amount),
        "cannot all be read as its present type",
    ),
    "more aggregates": (
        lambda: windows(lambda: Tumbling("1 h"), amount, Count, Count),
        "cannot all be read as its present type",
    ),
    "records kept": (
        lambda: windows(lambda: Tumbling("1 h"), amount, lambda: Collect(at_most=3)),
        "cannot all be read as its present type",
    ),
}


@pytest.mark.parametrize("what", MAY_CHANGE)
def test_change_that_open_windows_can_follow_is_accepted(what: str) -> None:
    refuse(windows(), MAY_CHANGE[what]())


@pytest.mark.parametrize("what", MUST_NOT)
def test_change_that_open_windows_cannot_follow_is_refused(what: str) -> None:
    new, words = MUST_NOT[what]
    with pytest.raises(RefusedError, match=words):
        refuse(windows(), new())


def test_aggregate_that_keeps_records_may_be_removed() -> None:
    old = windows(lambda: Tumbling("1 h"), amount, lambda: Collect(at_most=3))
    refuse(old, windows(lambda: Tumbling("1 h"), amount))


def test_gap_may_change_and_size_and_step_of_sliding_windows_may_not() -> None:
    refuse(windows(lambda: Session("1 h")), windows(lambda: Session("5 min")))
    old = windows(lambda: Sliding("1 h", "10 min"))
    for new, words in (
        (lambda: Sliding("2 h", "10 min"), "size_ms was 3600000 and is 7200000"),
        (lambda: Sliding("1 h", "5 min"), "every_ms was 600000 and is 300000"),
    ):
        with pytest.raises(RefusedError, match=words):
            refuse(old, windows(new))


def test_windows_of_another_kind_are_one_refusal_that_names_both_kinds() -> None:
    (refusal,) = refusals(windows(), windows(lambda: Sliding("1 h", "10 min")))
    assert "windows was tumbling and is sliding. Restore" in str(refusal)
