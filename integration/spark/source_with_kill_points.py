"""The stream source of a backfill with a trap, for the time when Spark has committed a micro-batch
and asks for more.

Spark runs the reader in a Python process of its own, and pickles its class by the name of this
module. `wave_driver` replaces the real class by this one, which gives the same answers.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.streaming.datasource import ReadLimit

from integration.faults.kill_points.kill_points import Plan, Traps
from tidegate.backfill.spark.wave_source import OVER, WAVE, Offset, WaveReader, WaveSource


class TrappedWaveSource(WaveSource):
    """The real source, with a reader that has a trap."""

    def streamReader(self, schema: object) -> WaveReader:  # noqa: N802  (Spark's name)
        """Return a reader with a trap."""
        del schema
        return TrappedWaveReader(Path(self.options[OVER]))


class TrappedWaveReader(WaveReader):
    """The real reader, which reaches `query.committed` before it answers."""

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  (Spark's name)
        """Answer Spark, which asks after the commit of each micro-batch, and once before the first
        one.
        """
        if start[WAVE] > 0:
            Traps(Plan.from_environment()).reached("query.committed")
        return super().latestOffset(start, limit)
