"""The choice of the records whose fields are all checked.

The check of a record may cost 20 ns. That is enough to check the class of every record. It is also
enough to check plain values and records of one field in full. Four fields cost 30 to 50 ns. The
fields of such records are therefore checked in some of them only:

- All fields of the first `FIRST` records of each task are checked, so that an error in the code
  itself is found in the first batches.
- After that, batches are drawn at random, as often as `BUDGET` allows, and up to `SLICE` records of
  a drawn batch are checked. With four plain fields, roughly one record in 11 is checked. An error
  in one record of a thousand is then found after 11,000 records on average.

Under a policy (`on_error`), and for a sink whose format has `validate="all"`, all fields of all
records are checked. The records that a policy refuses must not depend on a random choice.

This module does not decide how fields are checked (`api/state/field_check.py`) or what happens to a
wrong record (`checking.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.api.state.field_check import FieldCheck

FIRST: Final = 1024
"""Number of records at the beginning of a task that are checked in full."""
SLICE: Final = 128
"""Maximum number of records of one batch that are checked. It is large enough that the fixed cost
of a call is small in comparison with the cost of its values.
"""
BUDGET: Final = 0.4
"""Number of values that may be checked for each record: 3 to 6 ns, in addition to 12 ns for the
class.
"""
BATCH_BUDGET: Final = 20
"""Number of values that may be checked for each batch, in addition: 0.2 us. A batch of one record
costs a hundred times as much.
"""
SAVED_MAX: Final = 50_000
"""Maximum number of values that are saved up: 0.4 ms, the longest time that records wait for a
check.
"""
SIZE_MAX: Final = 2
"""Number of values of a record, including the record itself, up to which every record is checked in
full. This takes 20 ns, as long as the class of each record and the fields of a sample.
"""
FirstWrong = Callable[[list[Any]], int | None]
"""Function that returns the index of the first wrong value, or None if all values are right."""


def sampled(of: object, *, exact: bool = False) -> FirstWrong:
    """Return a check that costs at most 20 ns per record.

    With `exact`, only values count that are read back as they are.
    """
    fields = FieldCheck(of, exact=exact)
    small = fields.size is not None and fields.size <= SIZE_MAX
    return fields.first_wrong if small else SampledFields(fields).first_wrong


class _Draws:
    """Random numbers from 0 to 1, from Knuth's linear congruential generator (MMIX).

    The numbers are the same in each run, so that one seed of the simulator always draws the same
    records.
    """

    def __init__(self) -> None:
        self._state = FIRST

    def next(self) -> float:
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 32) / 2**32  # the upper half: the lower bits have short periods


class SampledFields:
    """A check of the classes of all records, and of the fields of the drawn records."""

    def __init__(self, fields: FieldCheck) -> None:
        self._classes, self._fields = fields.classes, fields
        self._first = FIRST
        self._saved = 0.0
        self._draws = _Draws()

    def first_wrong(self, values: list[Any]) -> int | None:
        """Return the index of the first value of a wrong class, else of the first value with a
        wrong field.
        """
        if self._first > 0:
            self._first -= len(values)
            return self._fields.first_wrong(values)
        wrong = self._classes.first_wrong(values)
        if wrong is not None:
            return wrong
        self._saved = min(self._saved + BATCH_BUDGET + BUDGET * len(values), SAVED_MAX)
        # The batch is also drawn at random, because the batches of the partitions alternate.
        if self._saved < 0 or self._draws.next() < 0.5:  # noqa: PLR2004  # heads or tails
            return None
        before = self._fields.cost
        start = int(self._draws.next() * max(1, len(values) - SLICE + 1))
        wrong = self._fields.first_wrong(values[start : start + SLICE])
        self._saved -= self._fields.cost - before
        return None if wrong is None else start + wrong
