"""Drawn pipelines with event time as backfills on a real Spark, which a live run continues.

The runs are those of `integration/exactly_once/test_drawn_event_time.py`: a backfill, a live run
with kills in its open windows, and a second backfill. The judge compares the drained output with
the input. Where the state cannot depend on the interleaving, it is that of a bounded run. The tests
of every day kill a Python worker in the first backfill. `-m soak` kills its driver.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pytest

from integration.agreement.drawn.cases import assert_right, case_of
from integration.agreement.drawn.draws import Draw, draw
from integration.agreement.drawn.hand_overs import HandOver, hand_over_of
from integration.agreement.runs import KilledDriver, Prepared
from integration.faults.kill_points.kill_points import Plan, Trap
from integration.spark.drivers import DriverOptions, running_driver
from integration.spark.jobs import ROOT
from integration.spark.processes import wait_until
from integration.support.backfill_process import DriverArguments
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession, start_session
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.timeout(600)

WAVE_TASK: Final = "integration.spark.entries:trapped_wave_task"
RECORDS: Final = 600
"""Approximate number of records of each source."""
QUICK: Final = ((36, False), (7, True))
"""Seeds, and whether the input is beyond the bound."""
QUICK_WAVES: Final = 2
"""Number of waves of each backfill in the tests of every day: each wave takes about a second."""
SOAK: Final = tuple((seed, bool(seed % 2)) for seed in range(200, 212))
IN_A_TASK: Final = Trap("slot.uploaded")
WITH_ALL_REPORTS: Final = Trap("driver.collected", nth=2)
"""The kill of a driver whose tasks run in other processes, in place of a kill in a task."""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """The traps of Spark's Python workers, which inherit the environment of the session."""
    made = Plan.of(tmp_path_factory.mktemp("traps"), [])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in made.to_environment().items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def session(plan: Plan) -> Iterator[BackfillSession]:
    with start_session("local[2,4]", python_path=[ROOT]) as running:
        yield running


@pytest.mark.parametrize(("seed", "beyond"), QUICK)
def test_drawn_backfill_on_spark_hands_its_open_windows_over_to_a_live_run(
    broker: EmbeddedKafka,
    session: BackfillSession,
    plan: Plan,
    tmp_path: Path,
    seed: int,
    beyond: bool,
) -> None:
    def kill_worker(arguments: DriverArguments, kill: Trap) -> None:
        plan.add(IN_A_TASK)

    before = len(plan.snapped())
    drawn = draw(seed, beyond=beyond)
    hand_over = replace(hand_over_of(seed), waves=QUICK_WAVES)
    assert_agreement(broker, session, tmp_path, drawn, hand_over, kill_worker)
    assert len(plan.snapped()) == before + 1


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("seed", "beyond"), SOAK)
def test_many_drawn_backfills_on_spark_agree_although_their_drivers_are_killed(
    broker: EmbeddedKafka, session: BackfillSession, tmp_path: Path, seed: int, beyond: bool
) -> None:
    drawn = draw(seed, beyond=beyond)
    assert_agreement(broker, session, tmp_path, drawn, hand_over_of(seed), kill_driver)


def kill_driver(arguments: DriverArguments, kill: Trap) -> None:
    """Run a driver with a Spark of its own, which is killed at a trap."""
    if kill.point.startswith("slot."):
        kill = WITH_ALL_REPORTS
    plan = Plan.of(Path(arguments.folder) / "driver-traps", [kill])
    options = DriverOptions(**msgspec.structs.asdict(arguments))
    with running_driver(options, plan) as driver:
        wait_until(driver.look, "the driver has ended")
        assert driver.process.wait() == -signal.SIGKILL, driver.lines()
        wait_until(driver.is_gone, "no process of the driver is left")


def assert_agreement(
    broker: EmbeddedKafka,
    session: BackfillSession,
    folder: Path,
    drawn: Draw,
    hand_over: HandOver,
    kill: KilledDriver,
) -> None:
    """Run a drawn pipeline as a hand-over whose waves run on Spark, and judge it."""
    case = case_of(drawn, folder, size=RECORDS)
    prepared = Prepared.make(case, "plain", broker.bootstrap, folder)
    executor = SparkExecutor(session, WAVE_TASK)
    outcomes = [prepared.handed_over(hand_over, "rocksdb", executor=executor, kill=kill)]
    if any(map(drawn.has_exact_state, drawn.steps)):
        outcomes.append(prepared.bounded("rocksdb"))
    assert_right(drawn, prepared.inputs, outcomes)
