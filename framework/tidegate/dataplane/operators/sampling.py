"""Which records of a step are checked down to their last field.

The check of a record may cost 20 ns. That is enough for the class of each, and for plain values and
records of one field, which are all checked in full. Four fields cost 30 to 50 ns. Of such records,
the fields of some are checked:

- of the first `FIRST` records of each task all are, so that a mistake in the code itself is found
  in the first batches;
- from then on batches are drawn at random, up to `SLICE` records of each, as often as `BUDGET`
  allows. Of records with four plain fields that is about one in 11. A mistake in one record of a
  thousand is then found after 11,000 records on average.

Under a policy (`on_error`), and for a sink whose format has `validate="all"`, all fields of all
records are checked: what a policy refuses must not depend on what is drawn.

Not here: how fields are checked (`api/field_check.py`), and what becomes of a wrong one
(`checking.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.api.field_check import FieldCheck
from tidegate.api.values import ClassCheck

FIRST: Final = 1024
"""So many records at the beginning of a task are checked in full."""
SLICE: Final = 128
"""Records of one batch that are checked at most: enough that what a call costs beside its values is
small."""
BUDGET: Final = 0.4
"""Values that may be looked at for each record: 3 to 6 ns, beside the 12 ns of the class."""
BATCH_BUDGET: Final = 20
"""And for each batch: 0.2 us, where a batch of one record costs a hundred times as much."""
SAVED_MAX: Final = 50_000
"""Values that are saved up at most: 0.4 ms, the longest that records wait for a check."""
SIZE_MAX: Final = 2
"""Values of a record, itself included, that are looked at in each: 20 ns, no more than the class of
each and a sample's fields.
"""
FirstWrong = Callable[[list[Any]], int | None]
"""The index of the first wrong value, None if all are right."""


def sampled(of: object) -> FirstWrong:
    """The check that costs no more than 20 ns a record."""
    fields = FieldCheck(of)
    small = fields.size is not None and fields.size <= SIZE_MAX
    return fields.first_wrong if small else SampledFields(of, fields).first_wrong


class _Draws:
    """Numbers from 0 to 1, the same in each run: Knuth's linear congruential generator (MMIX). A
    seed of the simulator then decides which records are drawn.
    """

    def __init__(self) -> None:
        self._state = FIRST

    def next(self) -> float:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 32) / 2**32  # the upper half: the lower bits have short periods


class SampledFields:
    """Checks the classes of all records, and the fields of those that are drawn."""

    def __init__(self, of: object, fields: FieldCheck) -> None:
        self._classes, self._fields = ClassCheck(of), fields
        self._first = FIRST
        self._saved = 0.0
        self._draws = _Draws()

    def first_wrong(self, values: list[Any]) -> int | None:
        """The index of the first value of another class, else of one with a wrong field."""
        if self._first > 0:
            self._first -= len(values)
            return self._fields.first_wrong(values)
        wrong = self._classes.first_wrong(values)
        if wrong is not None:
            return wrong
        self._saved = min(self._saved + BATCH_BUDGET + BUDGET * len(values), SAVED_MAX)
        # Which of the batches comes to its turn is drawn, too: those of partitions alternate.
        if self._saved < 0 or self._draws.next() < 0.5:  # noqa: PLR2004  # heads or tails
            return None
        before = self._fields.cost
        start = int(self._draws.next() * max(1, len(values) - SLICE + 1))
        wrong = self._fields.first_wrong(values[start : start + SLICE])
        self._saved -= self._fields.cost - before
        return None if wrong is None else start + wrong
