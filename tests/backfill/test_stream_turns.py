"""The turns of streamed waves, with a query that is a thread: which side waits, and which times
out.

`integration/spark/test_stream.py` runs the same on a real Spark. This module tests the situations
that a real Spark does not produce on demand.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidegate.backfill.spark.apart import run_in_thread
from tidegate.backfill.spark.stream import _run_streamed, _Stream
from tidegate.errors import SparkError, SparkLostError

pytestmark = pytest.mark.timeout(30)


class Query:
    """Calls a function for each batch until the stream is over, as a query with availableNow."""

    def __init__(self, stream: _Stream, repeats: int = 1) -> None:
        self.stream, self.repeats = stream, repeats
        self.batches = 0
        self.stopped = threading.Event()
        self.error: Exception | None = None
        self.hangs = False

    def awaitTermination(self) -> None:  # noqa: N802
        while not self.stream._over.exists() and not self.stopped.is_set():
            for _ in range(self.repeats):
                self.stream._take_turn(None, self.batches)
            self.batches += 1
            if self.error is not None:
                raise self.error
        if self.hangs:
            self.stopped.wait()

    def stop(self) -> None:
        self.stopped.set()


class Session:
    """A Spark whose JVM has ended, if `lost`."""

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost

    @property
    def sparkContext(self) -> Any:  # noqa: N802
        if self.lost:
            raise ConnectionRefusedError
        return self

    startTime = 0  # noqa: N815


def stream_and_query(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, lost: bool = False, repeats: int = 1
) -> tuple[_Stream, Query]:
    stream = _Stream(Session(lost=lost), folder)
    query = Query(stream, repeats)
    monkeypatch.setattr(stream, "_start", lambda: query)
    return stream, query


def run(stream: _Stream, run_wave: Callable[[], bool]) -> None:
    run_in_thread(
        stream.run,
        name="spark-stream",
        meanwhile=lambda: stream.serve(run_wave),
        on_interrupt=stream.request_stop,
    )
    assert not [each for each in threading.enumerate() if each.name == "spark-stream"]


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_all_waves_run_although_spark_repeats_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    stream, query = stream_and_query(tmp_path, monkeypatch, repeats=repeats)
    waves = iter([False, False, False, True])
    run(stream, lambda: next(waves))
    assert list(waves) == []
    assert query.batches == -(-4 // repeats)


@pytest.mark.parametrize("error", [ValueError("a wave"), KeyboardInterrupt()])
def test_error_of_a_wave_ends_the_query_without_a_stop_of_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    stream, query = stream_and_query(tmp_path, monkeypatch)

    def fail() -> bool:
        raise error

    with pytest.raises(type(error)) as caught:
        run(stream, fail)
    assert caught.value is error
    assert stream.is_finished
    assert query.batches == 1
    assert not query.stopped.is_set()


def test_an_interrupt_between_two_waves_stops_a_query_that_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at work on a batch, which is released, and then hangs in Spark."""
    stream, query = stream_and_query(tmp_path, monkeypatch)
    query.hangs = True

    def interrupted(_: Callable[[], bool]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "serve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(stream, bool)
    assert query.stopped.is_set()


@pytest.mark.parametrize(("lost", "kind"), [(False, SparkError), (True, SparkLostError)])
def test_failed_query_leaves_a_spark_error_and_runs_no_more_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool, kind: type[SparkError]
) -> None:
    stream, query = stream_and_query(tmp_path, monkeypatch, lost=lost)
    query.error = RuntimeError("no such luck")
    run(stream, lambda: False)
    assert type(stream.failure) is kind
    assert str(stream.failure).startswith("The streaming query that runs the waves has failed: ")
    assert not stream.is_finished
    for batch in range(3):
        stream._take_turn(None, batch)  # a batch that comes late neither waits nor asks for a wave
    assert stream._requests.empty()


class Failing(Session):
    """A session whose query fails after a number of batches. None: it runs to its end."""

    def __init__(self, folder: Path, batches: int | None, *, lost: bool = False) -> None:
        super().__init__(lost=lost)
        self.folder, self.batches = folder, batches
        self.queries = 0

    @property
    def spark(self) -> Session:
        return self

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        self.queries += 1
        folder = self.folder / str(self.queries)
        folder.mkdir()
        yield folder
        shutil.rmtree(folder)

    def start(self, stream: _Stream) -> Any:
        if self.batches == 0:
            raise RuntimeError("Python worker failed to connect back")
        query = Query(stream)

        def some_batches() -> None:
            for number in range(self.batches or 0):
                stream._take_turn(None, number)
            raise RuntimeError("Python worker failed to connect back")

        if self.batches is not None:
            query.awaitTermination = some_batches  # type: ignore[method-assign]
        return query


def failing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, batches: int | None, *, lost: bool = False
) -> tuple[Failing, Any]:
    session = Failing(folder, batches, lost=lost)

    def start(stream: _Stream) -> Any:
        return session.start(stream)

    monkeypatch.setattr(_Stream, "_start", start)
    fake: Any = session
    return session, fake


@pytest.mark.parametrize("batches", [0, 1, 2, 3])
def test_plain_loop_runs_the_waves_that_a_failed_query_has_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    batches: int,
) -> None:
    session, fake = failing(tmp_path, monkeypatch, batches)
    waves = iter([False, False, False, True])
    threads = set()

    def wave() -> bool:
        threads.add(threading.current_thread())
        return next(waves)

    _run_streamed(fake, wave)
    assert list(waves) == []
    assert threads == {threading.current_thread()}
    assert session.queries == 1, "no second query is started"
    [line] = caplog.messages
    assert line == (
        "The streaming query that runs the waves has failed: Python worker failed to connect back. "
        "A plain loop runs the next waves."
    )


def test_query_that_fails_after_its_last_wave_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, fake = failing(tmp_path, monkeypatch, 2)
    waves = iter([False, True])
    _run_streamed(fake, lambda: next(waves))
    assert list(waves) == []
    assert caplog.messages == []


def test_query_that_fails_during_a_wave_waits_for_the_end_of_that_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two waves would use the journal at the same time."""
    failed, events = threading.Event(), []

    def start(stream: _Stream) -> Any:
        query = Query(stream)

        def fails_in_a_batch() -> None:
            threading.Thread(target=stream._take_turn, args=(None, 0)).start()
            asked.wait()
            failed.set()
            raise RuntimeError("the callback server is gone")

        query.awaitTermination = fails_in_a_batch  # type: ignore[method-assign]
        return query

    asked = threading.Event()
    _, fake = failing(tmp_path, monkeypatch, None)
    monkeypatch.setattr(_Stream, "_start", start)

    def wave() -> bool:
        events.append("begin")
        asked.set()
        failed.wait()
        events.append("end")
        return len(events) == 4

    _run_streamed(fake, wave)
    assert events == ["begin", "end"] * 2


def test_stop_request_ends_the_loop_after_a_failed_query_before_another_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Backfill.run` gives the loop a function that asks for a stop first."""
    _, fake = failing(tmp_path, monkeypatch, 1)
    stops, waves = iter([False, True]), []

    def wave() -> bool:
        if next(stops):
            return True
        waves.append("wave")
        return False

    _run_streamed(fake, wave)
    assert waves == ["wave"]
    assert list(stops) == []


def test_plain_loop_does_not_begin_if_the_jvm_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fake = failing(tmp_path, monkeypatch, 1, lost=True)
    waves = iter([False, False])
    with pytest.raises(SparkLostError):
        _run_streamed(fake, lambda: next(waves))
    assert list(waves) == [False]


@pytest.mark.parametrize("batches", [None, 1])
def test_spark_error_of_a_wave_is_raised_and_starts_no_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int | None
) -> None:
    """The query may fail at the same time."""
    session, fake = failing(tmp_path, monkeypatch, batches)
    error, calls = SparkError("The Spark job failed: no such luck."), []

    def fail() -> bool:
        calls.append(1)
        raise error

    with pytest.raises(SparkError) as caught:
        _run_streamed(fake, fail)
    assert caught.value is error
    assert (session.queries, len(calls)) == (1, 1)
