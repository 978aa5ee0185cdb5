"""The turns of streamed waves, with a query that is a thread: which side waits, and which times
out.

`integration/spark/test_stream.py` runs the same on a real Spark. This module tests the situations
that a real Spark does not produce on demand.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tidegate.backfill.spark.apart import run_in_thread
from tidegate.backfill.spark.stream import QUERIES_MAX, _run_streamed, _Stream
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
        while not self.stream.is_finished() and not self.stopped.is_set():
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
    assert stream.is_finished()
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
def test_failed_query_raises_a_spark_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool, kind: type[SparkError]
) -> None:
    stream, query = stream_and_query(tmp_path, monkeypatch, lost=lost)
    query.error = RuntimeError("no such luck")
    with pytest.raises(SparkError, match=r"^The stream of waves failed: ") as caught:
        run(stream, lambda: False)
    assert type(caught.value) is kind
    stream._take_turn(None, 1)  # a batch that comes late does not wait


class Failing:
    """A session whose queries fail: `befores` says before how many turns each one does."""

    def __init__(self, folder: Path, befores: Iterator[int], *, lost: bool = False) -> None:
        self.spark, self.folder, self.befores = Session(lost=lost), folder, befores
        self.queries = 0

    @contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        self.queries += 1
        folder = self.folder / str(self.queries)
        folder.mkdir()
        yield folder

    def start(self, stream: _Stream) -> Any:
        query = Query(stream)
        if (turns := next(self.befores)) == 0:
            raise RuntimeError("Python worker failed to connect back")
        real = query.awaitTermination

        def some_turns() -> None:
            for _ in range(turns):
                if stream.is_finished():
                    return
                stream._take_turn(None, 0)
            raise RuntimeError("Python worker failed to connect back")

        query.awaitTermination = some_turns if turns > 0 else real  # type: ignore[method-assign]
        return query


def failing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *befores: int, lost: bool = False
) -> tuple[Failing, Any]:
    session = Failing(folder, itertools.chain(befores, itertools.repeat(0)), lost=lost)

    def start(stream: _Stream) -> Any:
        return session.start(stream)

    monkeypatch.setattr(_Stream, "_start", start)
    fake: Any = session
    return session, fake


FINE = -1
"""A query that runs to its end."""


def test_failed_query_is_started_again_and_all_waves_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, fake = failing(tmp_path, monkeypatch, 0, 0, 1, 2, FINE)
    waves = iter([False, False, False, False, True])
    _run_streamed(fake, lambda: next(waves))
    assert list(waves) == []
    assert session.queries == 5
    assert caplog.text.count("is started again: The stream of waves failed") == 4


def test_stream_fails_after_too_many_failed_queries_without_a_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wave between two failures makes the count begin again."""
    session, fake = failing(tmp_path, monkeypatch, *[0] * (QUERIES_MAX - 1), 1)
    waves = iter([False, False])
    with pytest.raises(SparkError, match="failed to connect back"):
        _run_streamed(fake, lambda: next(waves))
    assert list(waves) == [False], "one wave has run"
    assert session.queries == QUERIES_MAX - 1 + QUERIES_MAX


def test_query_is_not_started_again_if_the_jvm_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, fake = failing(tmp_path, monkeypatch, 1, lost=True)
    with pytest.raises(SparkLostError):
        _run_streamed(fake, lambda: False)
    assert session.queries == 1


def test_spark_error_of_a_wave_does_not_start_another_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, fake = failing(tmp_path, monkeypatch, FINE)
    error = SparkError("The Spark job failed: no such luck.")

    def fail() -> bool:
        raise error

    with pytest.raises(SparkError) as caught:
        _run_streamed(fake, fail)
    assert caught.value is error
    assert session.queries == 1
