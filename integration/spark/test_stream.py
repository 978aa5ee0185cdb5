"""Waves that Structured Streaming drives, on a real Spark. They are exact, and leave nothing
behind.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from integration.spark.jobs import ORDERS, exact
from integration.spark.processes import is_alive, wait_until
from integration.support.backfills import BackfillJob
from tidegate.backfill.driver import run_in_turn
from tidegate.backfill.executor import Executor, WaveTasks
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession
from tidegate.backfill.spark.stream import make_wave_loop
from tidegate.bootstrap import WAVE_TASK
from tidegate.config import Config
from tidegate.errors import SparkError, StateValueError, UserCodeError
from tidegate.protocol.waves import TaskReport

pytestmark = pytest.mark.timeout(300)

Wave = Callable[[], bool]

SOURCE_RUNNER = "python_streaming_source_runner"
"""A name on the command line of the process in which Spark runs the source of a query."""


class Waves:
    """A `run_wave` that returns True at its last call. `then` may change that result, or raise."""

    def __init__(self, last: int, then: Wave = lambda: True) -> None:
        self.last, self.then, self.calls = last, then, 0
        self.threads: set[threading.Thread] = set()

    def __call__(self) -> bool:
        self.calls += 1
        self.threads.add(threading.current_thread())
        assert self.calls <= self.last, "a wave behind the last one"
        return self.calls == self.last and self.then()


def left(session: BackfillSession) -> list[Any]:
    """Return what an ended loop has left: queries, folders and threads."""
    assert session._folder is not None
    return [
        *session.spark.streams.active,
        *session._folder.path.glob("tmp/tidegate-spark-*"),
        *Path(tempfile.gettempdir()).glob("temporary-*"),  # where Spark would put a checkpoint
        *(each for each in threading.enumerate() if each.name.startswith("spark-")),
    ]


def test_a_streamed_backfill_is_exact(job: BackfillJob, session: BackfillSession) -> None:
    waves = job.backfill(
        parallelism=3,
        wave_offsets=5_000,
        executor=SparkExecutor(session, WAVE_TASK),
        loop=make_wave_loop(session),
    )
    assert len(waves) >= 4
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert exact(job)
    assert left(session) == []


def test_each_wave_is_an_empty_streaming_batch_and_runs_in_the_driver_thread(
    session: BackfillSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[int, int, str]] = []

    def seen(call: Any, batch: Any, number: int) -> None:
        adaptive = batch.sparkSession.conf.get("spark.sql.adaptive.enabled")
        batches.append((number, batch.count(), adaptive))
        call(batch, number)

    wrap_batches(monkeypatch, seen)
    waves = Waves(5)
    make_wave_loop(session)(waves)
    assert waves.calls == 5
    assert waves.threads == {threading.current_thread()}
    assert batches == [(number, 0, "false") for number in range(5)]
    assert left(session) == []


def wrap_batches(monkeypatch: pytest.MonkeyPatch, around: Callable[[Any, Any, int], None]) -> None:
    """Replace Spark's call `function(batch, number)` by `around(function, batch, number)`."""
    from pyspark.sql.streaming import DataStreamWriter

    real = DataStreamWriter.foreachBatch

    def wrapped(writer: Any, function: Any) -> Any:
        return real(writer, lambda batch, number: around(function, batch, number))

    monkeypatch.setattr(DataStreamWriter, "foreachBatch", wrapped)


def test_repeated_streaming_batch_runs_the_next_wave_and_none_after_the_last(
    session: BackfillSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers: list[int] = []

    def twice(call: Any, batch: Any, number: int) -> None:
        numbers.append(number)
        call(batch, number)
        call(batch, number)

    wrap_batches(monkeypatch, twice)
    waves = Waves(5)
    make_wave_loop(session)(waves)
    assert waves.calls == 5
    assert numbers == [0, 1, 2], "each batch but the last has run two waves"
    assert left(session) == []


def test_error_of_a_wave_is_raised_as_the_same_exception_object(
    session: BackfillSession, caplog: pytest.LogCaptureFixture
) -> None:
    error = UserCodeError("step total: no such luck")

    def fails() -> bool:
        raise error

    waves = Waves(2, fails)
    with pytest.raises(UserCodeError) as caught:
        make_wave_loop(session)(waves)
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert waves.calls == 2
    assert left(session) == []
    assert "Traceback" not in caplog.text, "py4j prints what the function of a batch raises"
    again = Waves(2)
    make_wave_loop(session)(again)
    assert again.calls == 2


class FailsOnce:
    """An executor whose second wave fails after its tasks have written everything."""

    def __init__(self, executor: Executor, error: Exception) -> None:
        self.executor, self.error, self.waves = executor, error, 0

    def check(self, config: Config) -> None:
        self.executor.check(config)

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        self.waves += 1
        reports = self.executor.run(wave)
        if self.waves == 2:
            raise self.error
        return reports


def test_a_backfill_whose_wave_fails_raises_its_error_and_the_next_run_is_exact(
    job: BackfillJob, session: BackfillSession
) -> None:
    error = StateValueError("step total, state total: no such luck")
    executor = FailsOnce(SparkExecutor(session, WAVE_TASK), error)
    loop = make_wave_loop(session)
    with pytest.raises(StateValueError) as caught:
        job.backfill(parallelism=2, wave_offsets=8_000, executor=executor, loop=loop)
    assert caught.value is error
    assert left(session) == []
    waves = job.backfill(parallelism=2, wave_offsets=8_000, executor=executor, loop=loop)
    assert sum(wave.records_in for wave in waves) < ORDERS, "the first wave has stayed"
    assert exact(job)


class KillsSource:
    """An executor that kills the process of the query's source when the first wave has run."""

    def __init__(self, executor: Executor) -> None:
        self.executor, self.waves = executor, 0

    def check(self, config: Config) -> None:
        self.executor.check(config)

    def run(self, wave: WaveTasks) -> list[TaskReport]:
        self.waves += 1
        reports = self.executor.run(wave)
        if self.waves == 1:
            [source] = source_processes()
            source.kill()
        return reports


def source_processes() -> list[psutil.Process]:
    """Return the Python process in which Spark runs the source of the query."""
    found = []
    for each in filter(is_alive, psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker ends at any time
            if SOURCE_RUNNER in " ".join(each.cmdline()):
                found.append(each)
    return found


def test_backfill_whose_query_fails_continues_in_a_plain_loop_and_is_exact(
    job: BackfillJob,
    session: BackfillSession,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The first wave is published when the query fails, and the second one never asked for."""
    executor = KillsSource(SparkExecutor(session, WAVE_TASK))
    waves = job.backfill(
        parallelism=2, wave_offsets=8_000, executor=executor, loop=make_wave_loop(session)
    )
    assert len(waves) == executor.waves >= 3
    assert sum(wave.records_in for wave in waves) == ORDERS
    assert exact(job)
    assert left(session) == []
    said = [each for each in caplog.messages if each.endswith("A plain loop runs the next waves.")]
    assert len(said) == 1, caplog.messages
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


def test_stopped_streaming_query_raises_spark_error(session: BackfillSession) -> None:
    """The stop waits for the running wave."""
    stopping: list[threading.Thread] = []

    def stop() -> bool:
        [query] = session.spark.streams.active
        stopping.append(threading.Thread(target=query.stop))
        stopping[0].start()
        wait_until(lambda: not query.isActive, "Spark stops the query")
        return False

    with pytest.raises(SparkError, match="ended before the last wave: its query was stopped"):
        make_wave_loop(session)(Waves(2, stop))
    stopping[0].join()
    assert left(session) == []


@pytest.mark.parametrize(
    ("version", "ships", "is_plain"),
    [
        ("4.1.3", False, True),
        ("4.2.0", False, False),
        ("4.3.0", False, False),
        ("4.3.0", True, True),
    ],
)
def test_plain_loop_is_used_for_old_spark_versions_and_shipped_packages(
    version: str, ships: bool, is_plain: bool
) -> None:
    session: Any = SimpleNamespace(spark=SimpleNamespace(version=version), ships=ships)
    assert (make_wave_loop(session) is run_in_turn) == is_plain


def test_wave_source_offers_one_more_wave_until_the_last_is_done(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

    from tidegate.backfill.spark.wave_source import OVER, WaveSource

    over = tmp_path / "over"
    reader = WaveSource({OVER: str(over)}).streamReader(None)
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    for limit in (ReadAllAvailable(), ReadMaxRows(1), reader.getDefaultReadLimit()):
        assert reader.latestOffset({"wave": 7}, limit) == {"wave": 8}
    assert reader.partitions(start, {"wave": 1}) == []
    over.touch()
    for limit in (ReadAllAvailable(), ReadMaxRows(1)):
        assert reader.latestOffset(start, limit) == start
    assert WaveSource.__module__ in sys.modules, "Spark pickles the class by this name"
