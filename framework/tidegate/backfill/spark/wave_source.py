"""The stream source of a backfill, which reports one more wave and returns no records.

Its offset is `{"wave": n}`, the number of waves that Spark has asked for. Spark runs the reader in
a separate Python process on the driver's host. The reader uses neither Kafka nor the journal. It
only checks whether the file of the option `over` exists. The driver creates this file when the last
wave is done.

The number of waves is not known beforehand. A wave may become smaller, another process may have run
some waves, and a user may stop the driver. So the latest offset is always one wave after the start,
for each read limit, also for `ReadAllAvailable`. If the file exists, the latest offset is the
start, and a query with the trigger `availableNow` ends.

Spark pickles these classes by name, so they are at the top level of a module. This module therefore
needs pyspark when it is imported. Only `stream` imports it, inside a function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

NAME: Final = "tidegate_waves"
OVER: Final = "over"
"""The option with the path of the file that exists after the last wave."""
WAVE: Final = "wave"

Offset = dict[str, int]


class WaveSource(DataSource):  # type: ignore[misc]  # pyspark is not read by mypy
    """The data source from which Spark creates a reader."""

    @classmethod
    def name(cls) -> str:
        """Return the format of `readStream`."""
        return NAME

    def schema(self) -> str:
        """Return the schema that Spark requires. The source never returns a row."""
        return f"{WAVE} long"

    def streamReader(self, schema: object) -> WaveReader:  # noqa: N802  (Spark's name)
        """Return a reader for one query."""
        del schema
        return WaveReader(Path(self.options[OVER]))


class WaveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Counts waves. It stores no count: each answer depends only on the start and on the file."""

    def __init__(self, over: Path) -> None:
        self._over = over

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Do nothing, because the driver decides which wave is the last."""

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Return the offset before the first wave of this query."""
        return {WAVE: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """Return a limit of one wave for each batch."""
        return ReadMaxRows(1)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  (Spark's name)
        """Return one wave more than `start`, or `start` if the last wave is done."""
        del limit
        return start if self._over.exists() else {WAVE: start[WAVE] + 1}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return no partitions, because a batch has no rows that a task could read."""
        del start, end
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Return no rows. Spark never calls this, because there is no partition."""
        del partition
        return iter(())
