"""`tidegate diff`: the differences that it describes, and the text of its verdict."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.checkpoint.test_restore import checkpoint, plan
from tidegate import build
from tidegate.checkpoint.restore import refusals
from tidegate.checkpoint.state_metadata import SourceMetadata, StateMetadata, StepMetadata
from tidegate.cli.inspect.code_changes import Change, code_changes, type_text
from tidegate.cli.inspect.diff import RULES
from tidegate.cli.inspect.diff_output import Comparison, Loss, comparison_json, comparison_text
from tidegate.ids import Uid

LONG, TEXT = '{"type":"long"}', '{"type":"string"}'
TIMER = (
    '{"type":"record","name":"tuple","fields":[{"name":"f0","type":{"type":"string"}},'
    '{"name":"f1","type":{"type":"long"}}],"tidegate.state":"event_timer"}'
)


def step(states: dict[str, str], **fields: object) -> StepMetadata:
    known: dict[str, object] = {"uid": Uid("total"), "key_type": "str", "states": states}
    return StepMetadata(**(known | fields))  # type: ignore[arg-type]  # as in `known`


def with_steps(*steps: StepMetadata) -> StateMetadata:
    return plan(steps=steps)


def changes(
    old: StateMetadata, new: StateMetadata, schemas: dict[str, list[str]]
) -> list[tuple[str, str, str, str]]:
    manifest = checkpoint(old, schemas=schemas)
    found = code_changes(manifest, new, {}, RULES)
    return [(each.change, each.kind, each.name, each.effect) for each in found]


def test_same_code_has_no_difference() -> None:
    same = with_steps(step({"total": LONG}))
    assert not changes(same, same, {"total": [LONG]})


def test_timer_is_called_a_timer() -> None:
    old, new = with_steps(step({"total": LONG})), with_steps(step({"total": LONG, "end": TIMER}))
    empty = "it begins empty, or with its default"
    assert changes(old, new, {"total": [LONG]}) == [("added", "timer", "total.end", empty)]


def test_type_that_cannot_be_read_is_refused_and_one_that_can_is_read() -> None:
    old = with_steps(step({"total": LONG}))
    refused = changes(old, with_steps(step({"total": TEXT})), {"total": [LONG]})
    assert refused == [("changed", "state", "total.total", "the restore is refused")]
    wider = f"[{LONG},null]".replace("null", '"null"')
    (read,) = changes(old, with_steps(step({"total": wider})), {"total": [LONG]})
    assert read[3] == "stored values are read as the new type"


def test_windows_of_another_kind_are_refused() -> None:
    old = with_steps(step({"total": LONG}, fixed={"windows": "tumbling"}))
    new = with_steps(step({"total": LONG}, fixed={"windows": "session"}))
    assert changes(old, new, {"total": [LONG]}) == [
        ("changed", "windows", "total.windows", "the restore is refused")
    ]


def test_parallelism_may_change_and_max_parallelism_may_not() -> None:
    old = with_steps(step({"total": LONG}))
    new = plan(parallelism=3, max_parallelism=64, steps=old.steps)
    assert changes(old, new, {"total": [LONG]}) == [
        (
            "changed",
            "parallelism",
            "job.parallelism",
            "the state is distributed over the new subtasks",
        ),
        ("changed", "max_parallelism", "job.max_parallelism", "the restore is refused"),
    ]


def test_every_reason_of_a_refusal_is_found_and_not_only_the_first() -> None:
    old = with_steps(step({}, uid=Uid("other")), step({"total": LONG, "count": LONG}))
    new = plan(
        steps=(step({"sum": LONG}),),
        sources=(SourceMetadata(uid=Uid("orders"), topic="other-orders"),),
    )
    manifest = checkpoint(old, schemas={"total": [LONG], "count": [LONG]})
    found = [str(each) for each in refusals(manifest, new, schemas=RULES)]
    assert len(found) == 4
    for text, said in zip(
        found, ("step 'other'", "state 'count'", "state 'total'", "other-orders"), strict=True
    ):
        assert said in text


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ('"string"', "string"),
        (LONG, "long"),
        ('["null",{"type":"long"}]', "null | long"),
        ('{"type":"array","items":"long"}', "list[long]"),
        ('{"type":"map","values":{"type":"bytes","logicalType":"decimal"}}', "map[decimal]"),
        ('{"type":"record","name":"A","fields":[{"name":"b","type":"int"}]}', "A(b: int)"),
    ],
)
def test_schema_has_a_short_text(schema: str, text: str) -> None:
    assert type_text(json.loads(schema)) == text


def compared(**fields: object) -> Comparison:
    known: dict[str, object] = {
        "job": "totals",
        "reference": "job:Totals",
        "storage": "s",
        "checkpoint": "3-17",
    }
    return Comparison(**(known | fields))  # type: ignore[arg-type]  # as in `known`


def test_loss_that_is_not_accepted_is_stated_and_refuses_the_run() -> None:
    lost = compared(lost=Loss("Records of transaction t are lost.", accepted=False))
    assert not lost.accepted
    assert not comparison_json(lost)["accepted"]
    assert comparison_text(lost).splitlines()[-3:] == [
        "The job has lost output, and a run is refused until that is accepted:",
        "  Records of transaction t are lost.",
        "With --accept-data-loss a run continues without this output.",
    ]
    accepted = compared(lost=Loss("Records of transaction t are lost.", accepted=True))
    assert comparison_text(accepted).endswith("Accepted: a run continues from checkpoint 3-17.")


def test_text_shows_each_change_and_each_reason() -> None:
    change = Change(
        kind="state", name="a.b", change="changed", was="long", now="string", effect="it is refused"
    )
    text = comparison_text(compared(changes=(change,), refusals=("one", "two")))
    assert text.splitlines()[1:] == [
        "  changed  state a.b: long -> string (it is refused)",
        "Refused: a run would not start, for these reasons:",
        "  1. one",
        "  2. two",
        "To start without this state, run the job with --restore none.",
    ]


SOURCE = """
import msgspec
from tidegate import (
    BoundedOutOfOrderness, Count, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, Tumbling,
    ValueState, WindowProcess,
)
{imports}

class Order(msgspec.Struct, frozen=True):
    customer: str
    at_ms: int

{function}

class Counting(KeyedProcess[str, Order, Order]):
    count = ValueState(int, default=0)

    def process(self, record, ctx):
        yield record

class First(WindowProcess[str, Order, Order]):
    def process(self, records, ctx):
        yield records[0]

class Orders(Pipeline, name="orders"):
    orders = KafkaSource(
        "orders", value=Json(Order), event_time=lambda order: order.at_ms,
        watermarks=BoundedOutOfOrderness("1 s"),
    )
    out = KafkaSink("out", value=Json(Order), record_key=lambda order: order.customer)
    counts = KafkaSink("counts", value=Json(int))

    def define(self) -> None:
        keyed = self.orders.filter(is_large).key_by(lambda order: order.customer)
        keyed.process(Counting(), uid="counting").to(self.out)
        keyed.window(Tumbling("1 h")).process(First(), uid="first").to(self.out)
        keyed.window(Tumbling("1 h")).aggregate(
            Count(), uid="count", into=lambda w, n: n, returns=int
        ).to(self.counts)
"""
IS_LARGE = "def is_large(order: Order) -> bool:\n    return True\n"


Describe = Callable[..., dict[str, object]]


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Describe:
    """Describes the graph of the pipeline in a module, as a checkpoint stores it."""
    numbers = itertools.count()

    def describe(module: str, *, imports: str = "", function: str = IS_LARGE) -> dict[str, object]:
        folder = tmp_path / str(next(numbers))
        file = folder.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True)
        file.write_text(SOURCE.format(imports=imports, function=function))
        (folder / "helper.py").write_text(IS_LARGE.replace(": Order", ""))
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(folder))
            made = importlib.import_module(module)
            for name in (module, "helper", module.partition(".")[0]):
                sys.modules.pop(name, None)
        found: dict[str, object] = json.loads(json.dumps(build(made.Orders).describe()))
        return found

    return describe


def graph_changes(old: dict[str, object], new: dict[str, object]) -> list[tuple[str, ...]]:
    same = with_steps(step({"total": LONG}))
    manifest = msgspec.structs.replace(checkpoint(same, schemas={"total": [LONG]}), graph=old)
    found = code_changes(manifest, same, new, RULES)
    return [(each.change, each.kind, each.name, each.was, each.now) for each in found]


def test_renamed_file_is_one_line_and_no_change_of_each_function(described: Describe) -> None:
    old, new = described("orders_v1"), described("flows_v2.orders")
    names = "Orders.<lambda>, is_large, Counting and 2 more"
    assert graph_changes(old, new) == [
        ("moved", "functions", names, "orders_v1", "flows_v2.orders")
    ]
    assert graph_changes(new, json.loads(json.dumps(new))) == []


def test_other_input_of_a_step_is_a_change_also_if_its_file_was_renamed(
    described: Describe,
) -> None:
    old, new = described("orders_v1"), described("flows_v2.orders")
    nodes: Any = new["nodes"]
    [counting] = [node for node in nodes if node["id"] == "counting"]
    assert counting["inputs"][0][:3] == ["filter-1", "main", "key"]
    counting["inputs"][0][0] = "orders"
    changed = [each for each in graph_changes(old, new) if each[0] == "changed"]
    assert [(kind, name) for _, kind, name, *_ in changed] == [("step", "counting.inputs")]


def test_function_that_moves_to_another_module_is_named_and_another_function_is_a_change(
    described: Describe,
) -> None:
    old = described("orders_v1")
    moved = described("orders_v1", imports="from helper import is_large", function="")
    assert graph_changes(old, moved) == [("moved", "function", "is_large", "orders_v1", "helper")]
    huge = IS_LARGE.replace("is_large", "is_huge") + "is_large = is_huge"
    assert graph_changes(old, described("orders_v1", function=huge)) == [
        ("changed", "step", "filter-1.function", "orders_v1:is_large", "orders_v1:is_huge")
    ]
