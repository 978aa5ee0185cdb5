"""A loop of waves that Structured Streaming drives. Each micro-batch is one wave.

A query reads `wave_source` with the trigger `availableNow`. For each batch, Spark calls a function
of this process (`foreachBatch`). This function asks the driver's thread for the next wave and waits
until it is done. The query ends after the batch in which `run_wave` has returned True.

`run_wave` itself runs in the thread that called the loop, as in the plain loop. This has three
effects. Only one thread uses the journal. An interrupt (KeyboardInterrupt) reaches the running wave
and cancels its Spark job. An exception of a wave reaches the caller of the loop as the same object.

The function that Spark calls never raises. A query that fails would only add a second error, and
py4j would print a traceback.

A query can fail although the waves can run. For example, on a busy machine Spark drops the
process of the source if it does not answer for ten seconds. Then the plain loop runs the waves that
are left. It begins after the wave that was running when the query failed, because both loops call
`run_wave` in the driver's thread.

Invariants: only the journal decides which wave is next. A batch carries no data, and its number has
no effect: a batch that Spark repeats runs the next wave, or nothing after the last one. Spark
writes its files about the query to a temporary folder, which is deleted at the end. A batch of a
query that has failed runs no wave.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from tidegate.backfill.driver import WaveLoop, run_in_turn
from tidegate.backfill.spark.apart import run_in_thread
from tidegate.backfill.spark.installation import minor_version
from tidegate.backfill.spark.session import BackfillSession
from tidegate.backfill.spark.spark_errors import spark_error
from tidegate.errors import SparkError, TidegateError, is_recoverable

STREAMS_MIN: Final = (4, 2)  # Python stream sources with availableNow and a read limit

_STOPPED: Final = (
    "The stream of waves ended before the last wave: its query was stopped. Run the command again"
    " to continue."
)
_log = logging.getLogger(__name__)


def make_wave_loop(session: BackfillSession) -> WaveLoop:
    """Return a loop for `Backfill.run` whose waves are the micro-batches of a streaming query.

    In two cases, this function returns the plain loop. First, an older Spark has no such sources
    for Python. Second, the driver may have sent the workers their packages. Spark would then start
    the source on the driver's host with the workers' Python, which has no tidegate there.

    The loop raises the exceptions of `run_wave`. After a query that has failed, it continues as the
    plain loop. It raises SparkError if the JVM has ended, or if other code stops the query. When
    the loop returns, the query has ended and its folder is deleted.
    """
    if session.ships or minor_version(str(session.spark.version)) < STREAMS_MIN:
        return run_in_turn
    return partial(_run_streamed, session)


def _run_streamed(session: BackfillSession, run_wave: Callable[[], bool]) -> None:
    with session.temporary_folder() as folder:
        stream = _Stream(session.spark, folder)
        run_in_thread(
            stream.run,
            name="spark-stream",
            meanwhile=lambda: stream.serve(run_wave),
            on_interrupt=stream.request_stop,
        )
    failure = stream.failure
    if stream.is_finished:
        if failure is not None:
            _log.info("the query failed after its last wave: %s", failure)
        return
    if failure is None:
        raise SparkError(_STOPPED)
    if not is_recoverable(failure):
        raise failure
    _log.warning("%s A plain loop runs the next waves.", failure)
    run_in_turn(run_wave)


class _Stream:
    """One query. Spark's thread asks for waves, and the driver's thread answers when one is done.

    `serve` runs in the driver's thread, `run` in a second one, `_take_turn` in a thread of py4j.
    """

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        self._over = folder / "over"
        """The file that tells the source of the query that no wave is left."""
        self._is_over = False
        self._requests: SimpleQueue[bool] = SimpleQueue()
        """The requests of the query: True asks for a wave, and False means that the query ended."""
        self._done: SimpleQueue[None] = SimpleQueue()
        """The answers: one for each requested wave, and further ones at the end. So no thread waits
        for `serve` after it has returned."""
        self._query: Any = None
        self._stop_requested = False
        self.is_finished = False
        """Whether the last wave is done, or one has failed."""
        self.failure: TidegateError | None = None
        """The error with which the query has ended. It is not the error of a wave."""

    def run(self) -> None:
        """Start the query, and return when it has ended."""
        try:
            self._query = self._start()
            self._query.awaitTermination()
        except Exception as error:  # noqa: BLE001  (of Spark and py4j: `failure` keeps it)
            self.failure = spark_error(
                "The streaming query that runs the waves has failed", error, self._spark
            )
        finally:
            self._is_over = True
            self._requests.put(False)
            self._done.put(None)

    def serve(self, run_wave: Callable[[], bool]) -> None:
        """Run a wave whenever Spark asks for one, until the query has ended."""
        while self._requests.get():
            is_last = True  # also if the wave fails
            try:
                is_last = run_wave()
            finally:
                if is_last:
                    self.is_finished = True
                    self._end()
                self._done.put(None)

    def request_stop(self) -> None:
        """End the query. The first call asks it to end, and a later call stops it.

        The first way is better: Spark waits for the end of the batch, and finds that no wave is
        left.
        """
        self._end()
        self._done.put(None)
        if self._stop_requested and self._query is not None:
            self._query.stop()
        self._stop_requested = True

    def _take_turn(self, batch: Any, number: int) -> None:
        """Wait for the next wave. Return at once if no wave is left, or if the query has ended.
        Spark calls this per batch.
        """
        del batch, number
        if not self._is_over:
            self._requests.put(True)
            self._done.get()

    def _end(self) -> None:
        """Let the query end after its present batch."""
        self._is_over = True
        self._over.touch()

    def _start(self) -> Any:
        from tidegate.backfill.spark.wave_source import NAME, OVER, WaveSource

        self._spark.dataSource.register(WaveSource)
        waves = self._spark.readStream.format(NAME).option(OVER, str(self._over)).load()
        checkpoint = (self._folder / "checkpoint").as_uri()
        writer = waves.writeStream.foreachBatch(self._take_turn).trigger(availableNow=True)
        return writer.option("checkpointLocation", checkpoint).start()
