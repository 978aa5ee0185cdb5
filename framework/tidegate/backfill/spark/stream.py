"""The loop of a backfill that Structured Streaming drives: a micro-batch is one wave.

A query reads `wave_source` with the trigger `availableNow`. For each batch Spark calls a function
of this process (`foreachBatch`), which asks the driver's thread for the next wave and waits until
that is done. The query ends behind the batch in which `run_wave` has returned True.

`run_wave` itself runs in the thread that called the loop, as in the plain loop. So one thread uses
the journal, an interrupt (KeyboardInterrupt) reaches the wave that runs and cancels its Spark job,
and an exception of a wave goes on as the object that it is. The function that Spark calls never
raises: a query that fails would only add a second error, and py4j would print a traceback.

Invariants: the journal is the only truth. A batch carries no data, and its number decides nothing:
a batch that Spark repeats runs whatever wave is next, or nothing behind the last one. What Spark
writes about the query stands in a temporary folder, which is deleted at the end. So a query that
Spark fails is started again, as a new one: on a busy machine Spark gives up the process of the
source when that has not answered for ten seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from tidegate.backfill.driver import WaveLoop, run_in_turn
from tidegate.backfill.spark.apart import run_apart
from tidegate.backfill.spark.failures import spark_error
from tidegate.backfill.spark.installation import minor_version
from tidegate.backfill.spark.session import BackfillSession
from tidegate.errors import SparkError, is_recoverable

STREAMS_MIN: Final = (4, 2)  # Python stream sources with availableNow and a read limit

QUERIES_MAX: Final = 5  # that fail in a row, without a wave between them

_STOPPED: Final = "The stream of waves ended before the last wave: its query was stopped."
_log = logging.getLogger(__name__)


def streamed(session: BackfillSession) -> WaveLoop:
    """A loop for `Backfill.run` whose waves are the micro-batches of a streaming query.

    An older Spark has no such sources for Python; with it this is the plain loop. So it is where
    the workers have their packages from the driver: Spark starts the source on the driver's host
    with the workers' Python, which has no tidegate there.

    The loop raises what `run_wave` raises. It raises SparkError if several queries fail in a row,
    or if one is stopped by somebody else. At its end the query has ended too, and its folder is
    deleted.
    """
    if session.ships or minor_version(str(session.spark.version)) < STREAMS_MIN:
        return run_in_turn
    return partial(_run_streamed, session)


def _run_streamed(session: BackfillSession, run_wave: Callable[[], bool]) -> None:
    failures = 0
    while True:
        with session.temporary_folder() as folder:
            stream = _Stream(session.spark, folder)
            try:
                _run_query(stream, run_wave)
            except SparkError as error:
                failures = 1 if stream.waves else failures + 1
                if stream.is_over() or failures == QUERIES_MAX or not is_recoverable(error):
                    raise
                _log.warning("the query that calls the waves is started again: %s", error)
            else:
                if not stream.is_over():
                    raise SparkError(_STOPPED)
                return


def _run_query(stream: _Stream, run_wave: Callable[[], bool]) -> None:
    run_apart(
        stream.run,
        name="spark-stream",
        meanwhile=lambda: stream.serve(run_wave),
        on_interrupt=stream.give_up,
    )


class _Stream:
    """One query. Spark's thread asks for waves, and the driver's thread answers when one is done.

    `serve` runs in the driver's thread, `run` in a second one, `_take_turn` in a thread of py4j.
    """

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._over = folder / "over"
        self._asked: SimpleQueue[bool] = SimpleQueue()
        """True for a wave; False when the query has ended."""
        self._done: SimpleQueue[None] = SimpleQueue()
        """One for each wave that was asked for, and more when nobody will answer any more."""
        self._query: Any = None
        self._gives_up = False
        self.waves = 0
        """How many are done."""

    def is_over(self) -> bool:
        """Whether the last wave is done, or one has failed."""
        return self._over.exists()

    def run(self) -> None:
        """Start the query, and return when it has ended."""
        try:
            self._query = self._start()
            self._query.awaitTermination()
        except Exception as error:
            raise spark_error("The stream of waves failed", error, self._spark) from error
        finally:
            self._asked.put(False)
            self._done.put(None)

    def serve(self, run_wave: Callable[[], bool]) -> None:
        """Run a wave whenever Spark asks for one, until the query has ended."""
        while self._asked.get():
            is_last = True  # also if the wave fails
            try:
                is_last = run_wave()
                self.waves += 1
            finally:
                if is_last:
                    self._over.touch()
                self._done.put(None)

    def give_up(self) -> None:
        """End the query: by itself at the first call, by force at a later one.

        By itself is better, because Spark waits for the end of a batch and then finds no more.
        """
        self._over.touch()
        self._done.put(None)
        if self._gives_up and self._query is not None:
            self._query.stop()
        self._gives_up = True

    def _take_turn(self, batch: Any, number: int) -> None:
        """Called by Spark for each batch; returns when a wave is done, or if there is none."""
        del batch, number
        if not self.is_over():
            self._asked.put(True)
            self._done.get()

    def _start(self) -> Any:
        from tidegate.backfill.spark.wave_source import NAME, OVER, WaveSource

        self._spark.dataSource.register(WaveSource)
        waves = self._spark.readStream.format(NAME).option(OVER, str(self._over)).load()
        checkpoint = (self._folder / "checkpoint").as_uri()
        writer = waves.writeStream.foreachBatch(self._take_turn).trigger(availableNow=True)
        return writer.option("checkpointLocation", checkpoint).start()
