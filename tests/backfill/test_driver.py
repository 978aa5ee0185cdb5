"""The driver's decisions around a wave, with a journal and an executor that only answer.

What a wave does is tested on real brokers (`integration/exactly_once/test_backfill.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tidegate.backfill.driver import TRIES, Backfill, raise_task_error
from tidegate.backfill.executor import WaveTasks
from tidegate.checkpoint.restore import RestorePlan
from tidegate.checkpoint.wave_cuts import offsets_left
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.client.preflight import (
    RunOptions,
    class_settings,
    load_for_submit,
    make_submission,
)
from tidegate.controlplane.journal.effect_runner import ProcedureStopped
from tidegate.controlplane.journal.job_journal import JobJournal
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import (
    BadRecordError,
    Domain,
    FencedError,
    IncompleteWaveError,
    JobClosedError,
    KafkaError,
    RefusedError,
    Retry,
    TidegateError,
    UserCodeError,
)
from tidegate.ids import Attempt, Uid
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.protocol.waves import TaskId, TaskReport

JOB = """
import msgspec

from tidegate import Json, KafkaSink, KafkaSource, Pipeline


class Order(msgspec.Struct, frozen=True):
    customer: str


class Job(Pipeline, name="job"):
    orders = KafkaSource("orders", value=Json(Order), starting_offsets="START")
    out = KafkaSink("out", value=Json(Order))

    def define(self) -> None:
        self.orders.to(self.out)
"""


@dataclass
class Answers:
    """A journal that recovers, and an executor that fails."""

    folder: Path
    submission: Submission
    recovery_fails: TidegateError | None = None
    wave_fails: TidegateError | None = None
    recovered: int = 0
    aborted: list[TidegateError] = field(default_factory=list)
    ran: int = 0
    takes: Callable[[], None] = field(default=lambda: None)
    closed: list[str] = field(default_factory=list)
    splits: tuple[SourceSplit, ...] = ()
    sizes: list[int] = field(default_factory=list)
    """The number of offsets of each run of a wave."""

    def close(self, outcome: str, stopped: str) -> None:
        self.closed.append(outcome)

    def fetch_code(self) -> Path:
        return self.folder

    def recover(self, plan: object, claimed: object) -> RecoveredJob:
        if isinstance(plan, TidegateError):
            self.aborted.append(plan)
            raise plan
        self.recovered += 1
        if self.recovery_fails is not None:
            raise self.recovery_fails
        return RecoveredJob(
            attempt=Attempt(self.recovered),
            journal_id="j",
            claim_nonce="n",
            kafka_cluster="k",
            finished=False,
            stopped=False,
            submission=self.submission,
            restore_plan=RestorePlan(
                keyed=({},),
                splits=(self.splits,),
                new_partitions=(),
                sources_without_position=frozenset({Uid("orders")}),
            ),
            transaction_timeout_ms=1,
            producer_pool_size=1,
            transactional_ids_per_subtask=1,
            max_message_bytes={},
        )

    def disconnect(self) -> None:
        """Nothing is connected."""

    def check(self, config: Config) -> None:
        """It runs with any."""

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        self.ran += 1
        self.sizes.append(sum(offsets_left(each) for each in wave.deploys[0].splits))
        self.takes()
        assert self.wave_fails is not None
        raise self.wave_fails


@dataclass
class Sleeper:
    """A clock that only adds up."""

    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return sum(self.slept)

    def now_ms(self) -> int:
        return 0

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Brokers:
    """They abort transactions after 60 s."""

    def transaction_max_timeout_ms(self) -> int:
        return 60_000

    def close(self) -> None:
        """Nothing is connected."""


@dataclass
class Made:
    backfill: Backfill
    answers: Answers
    clock: Sleeper


def make(folder: Path, *, start: str = "earliest", **settings: object) -> Made:
    module = f"driven_{uuid.uuid4().hex}"  # this process imports one module of a name
    folder.joinpath(f"{module}.py").write_text(JOB.replace("START", start))
    reference = f"{module}:Job"
    pipeline = load_for_submit(reference, folder)
    config: Config = load(
        folder=folder,
        environment={},
        class_statement=class_settings(pipeline),
        command_line={
            "checkpoint.dir": str(folder / "checkpoints"),
            "job.parallelism": 1,
            **{key.replace("__", "."): value for key, value in settings.items()},
        },
    )
    options = RunOptions(params={}, bounded=True)
    submission, _, _ = make_submission(reference, folder, pipeline, config, options)
    drivers, answers, clock = SystemDrivers(), Answers(folder, submission), Sleeper()
    drivers.clock = clock
    replaced = cast("Any", drivers)
    replaced.kafka_admin = lambda _: Brokers()
    backfill = Backfill(submission, config, drivers, answers, wave_offsets=10)
    backfill._journal = cast("JobJournal", answers)
    return Made(backfill, answers, clock)


def a_split(partition: int, offsets: int) -> SourceSplit:
    return SourceSplit(
        source=Uid("orders"), topic="orders", partition=partition, offset=0, end_offset=offsets
    )


def test_source_that_starts_at_latest_is_refused_before_a_task_runs(tmp_path: Path) -> None:
    made = make(tmp_path, start="latest")
    with pytest.raises(RefusedError, match="source 'orders' has starting_offsets='latest'"):
        made.backfill.run()
    assert (made.answers.ran, made.answers.recovered) == (0, 1)


def test_refused_recovery_is_not_retried(tmp_path: Path) -> None:
    """A topic that is gone is asked for over minutes."""
    made = make(tmp_path)
    made.answers.recovery_fails = RefusedError("the topic is gone")
    with pytest.raises(RefusedError, match="gone"):
        made.backfill.run()
    assert made.answers.recovered == 1
    assert made.answers.aborted == [made.answers.recovery_fails]


def test_open_transactions_of_a_failed_wave_are_aborted_without_a_restore(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.answers.wave_fails = BadRecordError("record 7")
    with pytest.raises(BadRecordError, match="record 7"):
        made.backfill.run()
    assert (made.answers.ran, made.answers.recovered) == (1, 1)
    assert made.answers.aborted == [made.answers.wave_fails]


@pytest.mark.parametrize(
    ("settings", "ran"),
    [
        ({}, TRIES),
        ({"restart__strategy": "none"}, 1),
        ({"restart__strategy": "fixed_delay", "restart__attempts": 2}, 3),
        ({"restart__strategy": "failure_rate", "restart__max_failures_per_interval": 2}, 2),
    ],
    ids=["exponential", "none", "fixed", "rate"],
)
def test_wave_with_failing_user_code_is_retried_as_the_restart_strategy_says(
    tmp_path: Path, settings: dict[str, Any], ran: int
) -> None:
    made = make(tmp_path, **settings)
    made.answers.wave_fails = UserCodeError("step 'total' raised")
    with pytest.raises(UserCodeError, match="step 'total' raised"):
        made.backfill.run()
    assert made.answers.ran == ran
    assert made.answers.recovered == ran
    assert len(made.answers.aborted) == 1, "what the last run has open is aborted"
    assert len(made.clock.slept) == ran - 1


def test_incomplete_wave_of_spark_is_retried_under_any_restart_strategy(
    tmp_path: Path,
) -> None:
    made = make(tmp_path, restart__strategy="none")
    made.answers.wave_fails = IncompleteWaveError("two runs")
    with pytest.raises(IncompleteWaveError):
        made.backfill.run()
    assert made.answers.ran == TRIES


def test_retry_delay_is_the_longer_of_the_restart_delay_and_the_backoff(tmp_path: Path) -> None:
    made = make(tmp_path, restart__strategy="fixed_delay", restart__delay="3 s")
    made.answers.wave_fails = UserCodeError("a service is down")
    with pytest.raises(UserCodeError):
        made.backfill.run()
    assert made.clock.slept == [3.0, 3.0, 4.0, 8.0]


@pytest.mark.parametrize(
    ("configured", "sizes"),
    [
        (1_000_000, [2_000, 1_000, 500, 250, 125]),
        (1_500, [1_500, 750, 375, 187, 93]),
        (3, [3, 1, 1, 1, 1]),
    ],
)
def test_next_run_of_a_wave_that_outlives_its_transactions_reads_half_as_many_records(
    tmp_path: Path, configured: int, sizes: list[int]
) -> None:
    """The brokers abort the transactions after 60 s, and each run takes 70 s. The topic has fewer
    records than the configured size of a wave.
    """
    made = make(tmp_path)
    made.backfill._wave_offsets = configured
    made.answers.splits = (a_split(0, 2_000),)
    made.answers.wave_fails = KafkaError("aborted")
    made.answers.takes = lambda: made.clock.sleep(70.0)
    with pytest.raises(KafkaError) as caught:
        made.backfill.run()
    assert made.answers.sizes == sizes
    (note,) = caught.value.__notes__
    assert "The wave took 70 s, and the brokers abort its transactions after 60 s" in note


def test_wave_size_of_several_partitions_is_halved_by_what_the_wave_has_read(
    tmp_path: Path,
) -> None:
    made = make(tmp_path)
    made.backfill._wave_offsets = 1_000_000
    made.answers.splits = (a_split(0, 300), a_split(1, 100), a_split(2, 0))
    made.answers.wave_fails = KafkaError("aborted")
    made.answers.takes = lambda: made.clock.sleep(70.0)
    with pytest.raises(KafkaError):
        made.backfill.run()
    assert made.answers.sizes == [400, 200, 100, 51, 26]  # each partition rounds its share up


def test_slow_recovery_does_not_make_the_next_wave_smaller(tmp_path: Path) -> None:
    """A recovery waits for Kafka over minutes, and no record of the wave is read then."""
    made = make(tmp_path)
    made.answers.splits = (a_split(0, 2_000),)
    made.answers.wave_fails = KafkaError("aborted")

    def run(wave: WaveTasks) -> list[TaskReport]:
        made.answers.recovery_fails = KafkaError("no broker answers")
        recover = made.answers.recover

        def slow(plan: object, claimed: object) -> RecoveredJob:
            made.clock.sleep(70.0)
            return recover(plan, claimed)

        made.answers.recover = slow  # type: ignore[method-assign]
        raise KafkaError("down")

    made.answers.run = run  # type: ignore[method-assign]
    with pytest.raises(KafkaError) as caught:
        made.backfill.run()
    assert made.backfill._wave_offsets == 10
    assert not hasattr(caught.value, "__notes__")


def test_the_last_error_of_waves_that_are_too_slow_names_the_slowest_subtask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(tmp_path)
    made.answers.splits = (a_split(0, 2_000),)
    aborted = ErrorReport.of(KafkaError("the transaction is aborted"))

    def run(wave: WaveTasks) -> list[TaskReport]:
        made.answers.ran += 1
        made.clock.sleep(70.0)
        return [
            TaskReport(attempt=Attempt(1), task=TaskId(1, 3), run="a", seconds=68.0, error=aborted),
            TaskReport(attempt=Attempt(1), task=TaskId(0, 0), run="b", seconds=12.0),
        ]

    monkeypatch.setattr(made.answers, "run", run)
    with pytest.raises(KafkaError, match="the transaction is aborted") as caught:
        made.backfill.run()
    assert made.answers.ran == TRIES
    (note,) = caught.value.__notes__
    assert "The slowest task was level 1, subtask 3: 68 s. Set a smaller --wave-records" in note


def test_wave_that_fails_before_the_transaction_timeout_keeps_its_size(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.answers.splits = (a_split(0, 2_000),)
    made.answers.wave_fails = KafkaError("down")
    made.answers.takes = lambda: made.clock.sleep(50.0)
    with pytest.raises(KafkaError):
        made.backfill.run()
    assert made.backfill._wave_offsets == 10
    assert not hasattr(made.answers.wave_fails, "__notes__")


def test_backfill_is_finished_if_a_dead_driver_has_closed_the_journal(tmp_path: Path) -> None:
    made = make(tmp_path)
    made.answers.recovery_fails = JobClosedError("closed", JobState.FINISHED.outcome, "")
    assert made.backfill.run()
    assert made.answers.closed == [JobState.FINISHED.outcome]


def test_backfill_is_fenced_by_a_newer_submission_of_the_job(tmp_path: Path) -> None:
    """The runner of the procedures stops at the question whether the process is still wanted."""
    made = make(tmp_path)
    made.answers.recovery_fails = ProcedureStopped("not wanted")
    with pytest.raises(FencedError, match="submitted again"):
        made.backfill.run()
    assert (made.answers.recovered, made.answers.aborted) == (1, []), "nothing more is claimed"


def test_no_wave_runs_if_the_backfill_is_stopped_before_the_first_wave(tmp_path: Path) -> None:
    made = make(tmp_path)
    assert not made.backfill.run(stop=lambda: True)
    assert (made.answers.ran, made.answers.recovered, made.answers.closed) == (0, 0, [])


def test_stop_between_two_retries_aborts_open_transactions_and_ends_the_retries(
    tmp_path: Path,
) -> None:
    made = make(tmp_path)
    made.answers.wave_fails = KafkaError("down")
    assert not made.backfill.run(stop=lambda: made.answers.ran > 0)
    assert (made.answers.ran, made.answers.aborted) == (1, [made.answers.wave_fails])


def test_error_of_a_task_has_the_traceback_of_the_user_code() -> None:
    error = ErrorReport(
        kind="UserCodeError",
        domain=Domain.USER,
        retry=Retry.NO,
        message="map 'double' raised",
        traceback="File orders.py, line 7",
    )
    report = TaskReport(attempt=Attempt(1), task=TaskId(0, 0), run="aa", error=error)
    with pytest.raises(UserCodeError, match="double") as raised:
        raise_task_error([report])
    assert raised.value.__notes__ == ["File orders.py, line 7"]
