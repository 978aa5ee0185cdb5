"""An idle job takes checkpoints less often, and its next record does not wait for that."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from integration.support.user_project import TOTALS, Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

FIRST, EACH = 300, 3
WHEN_IDLE_S = 60
"""Longer than any test here waits for output, in seconds."""
CONFIG = {"checkpoint.interval": "100 ms", "checkpoint.interval_when_idle": f"{WHEN_IDLE_S} s"}
VISIBLE_S_MAX = 15.0
"""A quarter of the interval of an idle job, in seconds. On an idle machine it takes 0.1 s."""

REMINDERS = """
from collections.abc import Iterable

import msgspec

from tidegate import Context, Fired, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline
from tidegate import ProcessingTimer


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Late(KeyedProcess[str, Order, Order]):
    due = ProcessingTimer()

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Order]:
        self.due.set(ctx.processing_time_ms + 10_000)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Order]:
        return (Order(ctx.key, 1),)


class Totals(Pipeline, name="{job}"):
    orders = KafkaSource("{orders}", value=Json(Order))
    totals = KafkaSink("{totals}", value=Json(Order))

    def define(self) -> None:
        self.orders.key_by(lambda order: order.customer).process(Late(), uid="late").to(self.totals)
"""


def has_totals(folder: Folder, count: int) -> bool:
    return len(folder.read("totals")) == count


def last_published(folder: Folder) -> tuple[int, int]:
    """Return the attempt and the number of the last published checkpoint; zeros without one."""
    attempt, _, counter = (folder.published() or ["0-0"])[-1].partition("-")
    return int(attempt), int(counter)


def await_idle(run: Run, folder: Folder) -> int:
    """Wait until no checkpoint is published for fifteen intervals. Return the number of the last
    one.
    """

    def is_steady() -> bool:
        before = last_published(folder)
        time.sleep(1.5)
        return before[1] > 1 and last_published(folder) == before

    run.until(is_steady, "idle")
    return last_published(folder)[1]


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_record_after_an_idle_time_is_visible_at_once(
    kafka: EmbeddedKafka, tmp_path: Path, parallelism: int
) -> None:
    """With two slots, the record crosses a shuffle: one slot reads it, another may write it."""
    folder = Folder.make(tmp_path, kafka.bootstrap, partitions=2)
    folder.orders(FIRST)
    config = {**CONFIG, "job.parallelism": str(parallelism)}
    count = FIRST
    with folder.started("--json", bounded=False, config=config) as run:
        run.until(partial(has_totals, folder, FIRST), "at the end of the first orders")
        for _ in range(2):
            before = await_idle(run, folder)
            folder.orders(EACH, first=count)
            count += EACH
            run.until(partial(has_totals, folder, count), "visible", VISIBLE_S_MAX)
            assert last_published(folder)[1] <= before + 20, "checkpoints came all the time"
        await_idle(run, folder)
        os.kill(run.slots()[0], signal.SIGKILL)
        folder.orders(EACH, first=count)
        count += EACH
        run.until(partial(has_totals, folder, count), "visible", VISIBLE_S_MAX)
        await_idle(run, folder)
        assert run.stop().code == 0
    folder.assert_exact(count)


def test_result_of_a_timer_that_fires_in_an_idle_time_is_visible_at_once(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, REMINDERS)
    with folder.started("--json", bounded=False, config=CONFIG) as run:
        run.until(lambda: last_published(folder)[1] > 1, "started")
        folder.orders(1)
        await_idle(run, folder)
        run.until(partial(has_totals, folder, 1), "visible", VISIBLE_S_MAX)
        assert run.stop().code == 0


@pytest.mark.slow
def test_checkpoints_of_an_idle_job_come_at_the_normal_interval_if_the_setting_is_zero(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, TOTALS)
    config = {**CONFIG, "checkpoint.interval_when_idle": "0 ms"}
    with folder.started("--json", bounded=False, config=config) as run:
        run.until(lambda: last_published(folder)[1] > 40, "often")
        assert run.stop().code == 0
