"""The stream source of a backfill: it says that there is one more wave, and hands out no records.

Its offset is `{"wave": n}`, the number of waves that Spark has asked for. Spark runs the reader in
a Python process of its own beside the driver. There it knows nothing of Kafka or of the journal. It
knows one thing: whether the file of the option `over` exists, which the driver makes when the last
wave is done.

How many waves there will be is not known beforehand: a wave may be made smaller, another process
may have run some, and the driver may be told to stop. So the answer to "what is the latest offset"
is always one wave more, whatever the read limit says, also for `ReadAllAvailable`: a wave that
nobody has decided on is not available. With the file the answer is the start, and a query with the
trigger `availableNow` ends.

Spark pickles these classes by name, so they stand at the top of a module, and this module needs
pyspark when it is imported. Only `stream` imports it, inside a function.
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
"""The option: the file that exists when there are no more waves."""
WAVE: Final = "wave"

Offset = dict[str, int]


class WaveSource(DataSource):  # type: ignore[misc]  # pyspark is not read by mypy
    """What Spark makes a reader of."""

    @classmethod
    def name(cls) -> str:
        """The format of `readStream`."""
        return NAME

    def schema(self) -> str:
        """Spark wants one; no row ever has it."""
        return f"{WAVE} long"

    def streamReader(self, schema: object) -> WaveReader:  # noqa: N802  (Spark's name)
        """A reader for one query."""
        del schema
        return WaveReader(Path(self.options[OVER]))


class WaveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Counts waves. It keeps no count itself: each answer follows from the start it is given."""

    def __init__(self, over: Path) -> None:
        self._over = over

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  (Spark's name)
        """Nothing is fixed here: the driver says which wave is the last."""

    def initialOffset(self) -> Offset:  # noqa: N802  (Spark's name)
        """Before the first wave of this query."""
        return {WAVE: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  (Spark's name)
        """One wave in a batch."""
        return ReadMaxRows(1)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  (Spark's name)
        """One wave more than `start`, or `start` if the last wave is done."""
        del limit
        return start if self._over.exists() else {WAVE: start[WAVE] + 1}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """None: a batch has no rows, and no task of Spark reads them."""
        del start, end
        return []

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Never called, because there is no partition."""
        del partition
        return iter(())
