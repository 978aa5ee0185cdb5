"""Whether a job opens transactions, and how many transactional ids each sink subtask gets."""

from __future__ import annotations

import pytest

from tidegate import (
    Calendar,
    Count,
    Json,
    KafkaSink,
    KafkaSource,
    Monotonous,
    Pipeline,
    Tumbling,
    build,
)
from tidegate.api.connectors.sink import Guarantee
from tidegate.api.windows.windows import TZ_DATABASE, Assigner
from tidegate.config import CheckpointSettings, Config
from tidegate.controlplane.journal.job_plan import (
    opens_transactions,
    state_metadata,
    transactional_ids_per_subtask,
)
from tidegate.graph.plan import plan


@pytest.mark.parametrize(
    ("one", "other", "opens"),
    [
        ("at_least_once", "none", False),
        ("exactly_once", "exactly_once", True),
        ("at_least_once", "exactly_once", True),
    ],
)
def test_job_opens_transactions_if_one_sink_is_exactly_once(
    one: Guarantee, other: Guarantee, opens: bool
) -> None:
    class Copies(Pipeline, name="copies"):
        numbers = KafkaSource("numbers", value=Json(int))
        first = KafkaSink("first", value=Json(int), guarantee=one)
        second = KafkaSink("second", value=Json(int), guarantee=other)

        def define(self) -> None:
            self.numbers.to(self.first)
            self.numbers.to(self.second)

    assert opens_transactions(build(Copies)) is opens


@pytest.mark.parametrize(
    ("assigner", "version"), [(Calendar("day", zone="UTC"), TZ_DATABASE), (Tumbling("1 h"), "")]
)
def test_metadata_of_calendar_windows_has_the_version_of_the_tz_database(
    assigner: Assigner[object], version: str
) -> None:
    class Counts(Pipeline, name="counts"):
        numbers = KafkaSource("numbers", value=Json(int), watermarks=Monotonous())
        counts = KafkaSink("counts", value=Json(int))

        def define(self) -> None:
            self.numbers.key_by(str).window(assigner).aggregate(
                Count(), into=lambda _, count: count, uid="count", returns=int
            ).to(self.counts)

    graph = build(Counts)
    assert state_metadata(graph, plan(graph, 1, 128), Config()).tz_database == version
    assert version != "" or TZ_DATABASE


@pytest.mark.parametrize("failures", [0, 2, 14, 100])
@pytest.mark.parametrize("interval_ms", [10, 100, 10_000])
def test_tolerable_failed_checkpoints_never_use_up_all_transactional_ids(
    failures: int, interval_ms: int
) -> None:
    """Each that fails leaves its transaction prepared, until one is published that names it. With
    none left the sink would read nothing up to the barrier of the one that could.
    """
    settings = CheckpointSettings(interval=interval_ms, tolerable_failed_checkpoints=failures)
    prepared = failures + 1
    current, warm, freed = 1, 1, 1
    assert transactional_ids_per_subtask(settings) >= prepared + current + warm + freed


def test_count_of_transactional_ids_is_limited_for_short_intervals() -> None:
    assert (
        transactional_ids_per_subtask(
            CheckpointSettings(interval=1, tolerable_failed_checkpoints=2)
        )
        == 16
    )
    assert (
        transactional_ids_per_subtask(
            CheckpointSettings(interval=10_000, tolerable_failed_checkpoints=2)
        )
        == 7
    )
