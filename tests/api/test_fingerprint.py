"""Every process of a job builds the same graph: one fingerprint under any hash seed.

Method: each pipeline is built in separate processes under three values of PYTHONHASHSEED; and what
must change a fingerprint does, what must not does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pipelines.order_totals import CustomerTotal, Order, OrderTotals
from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    ValueState,
    build,
)

ROOT = Path(__file__).parents[2]
PIPELINES = [
    "pipelines.order_totals:OrderTotals",
    "pipelines.click_dedup:ClickDedup",
    "pipelines.payments_enriched:PaymentsEnriched",
]
BUILD = """
import pathlib, sys
from tidegate.api.code.code import code_digest, load_pipeline
from tidegate.api.pipeline import build
pipeline = load_pipeline(sys.argv[1], pathlib.Path.cwd())
print(build(pipeline).fingerprint(), code_digest(pipeline))
"""


@pytest.mark.parametrize("reference", PIPELINES)
def test_fingerprint_is_equal_in_processes_with_different_hash_seeds(reference: str) -> None:
    answers = set()
    for seed in ("0", "1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", BUILD, reference]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        answers.add(done.stdout)
    assert len(answers) == 1
    assert len(answers.pop().split()[0]) == 64


def case(*, topic: str = "orders", uid: str = "total", state: Any = Decimal, shift: int = 0) -> str:
    class Total(KeyedProcess[str, Order, CustomerTotal]):
        total = ValueState(state, default=state(0))

        def process(self, order: Order, ctx: Context[str]) -> Iterable[CustomerTotal]:
            return ()

    class Case(Pipeline, name="case"):
        orders = KafkaSource(topic, value=Json(Order))
        totals = KafkaSink("totals", value=Json(CustomerTotal))

        def define(self) -> None:
            keyed = self.orders.filter(lambda order: order.placed_at_ms > shift).key_by(
                lambda order: order.customer_id
            )
            keyed.process(Total(), uid=uid).to(self.totals)

    return build(Case).fingerprint()


@pytest.mark.parametrize("change", [{"topic": "other"}, {"uid": "sum"}, {"state": int}])
def test_fingerprint_changes_with_the_topic_the_uid_and_the_state_type(
    change: dict[str, Any],
) -> None:
    assert case(**change) != case()


def test_fingerprint_does_not_change_with_captured_values_or_parameters() -> None:
    assert case(shift=5) == case()
    assert build(OrderTotals, {"minimum": 5}).fingerprint() == build(OrderTotals).fingerprint()
