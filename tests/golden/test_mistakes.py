"""Mistakes in a pipeline's class that its build refuses, each with its message as a golden file.

Each would otherwise fail at the first record, in a process of the cluster. No broker is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.user_project import TOTALS, assert_golden
from tidegate.api.code.code import load_pipeline
from tidegate.api.pipeline import build
from tidegate.errors import PipelineError

FUNCTIONS = """
async def look_up(order: Order) -> Order:
    return order


class Running("""

SOURCE, SINK = "value=Json(Order)", "value=Json(Total)"
KEY = "self.orders.key_by("
STATE = "    total = ValueState(int, default=0)\n"

MISTAKES = {
    "type-as-format": (SOURCE, "value=Order"),
    "type-as-format-of-a-sink": (SINK, "value=Total"),
    "format-without-a-type": (SOURCE, "value=Json"),
    "format-of-no-schema": (SOURCE, "value=Json(object)"),
    "topic-without-a-format": (f", {SOURCE}", ""),
    "filter-of-a-bool": (KEY, "self.orders.filter(True).key_by("),
    "map-of-an-async-function": (KEY, "self.orders.map(look_up).key_by("),
    "map-of-two-arguments": (KEY, "self.orders.map(lambda a, b: a).key_by("),
    "key-by-a-name": ("lambda order: order.customer", '"customer"'),
    "record-key-of-two-arguments": ("lambda total: total.customer", "lambda a, b: a"),
    "process-is-async": ("    def process(", "    async def process("),
    "process-of-a-class": ("Running()", "Running"),
    "state-without-key-by": ("by_customer.process", "self.orders.process"),
    "state-made-in-init": (
        STATE,
        "    def __init__(self) -> None:\n        self.total = ValueState(int, default=0)\n",
    ),
    "state-only-annotated": (STATE, "    total: ValueState[int]\n"),
    "state-without-value": ("self.total.value +=", "self.total +="),
    "state-assigned": ("self.total.value += order.amount", "self.total = order.amount"),
    "state-without-a-default": ("ValueState(int, default=0)", "ValueState(int)"),
    "state-without-a-type": ("ValueState(int, default=0)", "ValueState()"),
    "state-with-a-mutable-default": (
        "ValueState(int, default=0)",
        "ValueState(list[int], default=[])",
    ),
    "method-unknown": (KEY, "self.orders.keyby("),
    "source-made-in-define": (KEY, f'KafkaSource("x", {SOURCE}).key_by('),
    "define-with-a-parameter": ("def define(self)", "def define(self, environment)"),
    "class-without-a-name": (', name="totals"', ""),
    "class-keyword-unknown": ('name="totals"', 'name="totals", paralelism=2'),
}


@pytest.fixture(autouse=True)
def imports_undone() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    sys.modules.pop("job", None)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_refused_at_build_with_the_correct_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = TOTALS.replace("class Running(", FUNCTIONS.lstrip())
    for placeholder in ("job", "orders", "totals"):
        text = text.replace(f"{{{placeholder}}}", placeholder.replace("job", "totals"))
    old, new = MISTAKES[name]
    assert old in text
    Path("job.py").write_text(text.replace(old, new).lstrip("\n"), encoding="utf-8")
    with pytest.raises(PipelineError) as raised:
        build(load_pipeline("job:Totals", tmp_path), {})
    said = str(raised.value)
    assert " at 0x" not in said, "the address of an object says nothing to a user"
    assert "job.py:" in said or "define()" in said
    assert_golden(f"mistake-{name}", said)
