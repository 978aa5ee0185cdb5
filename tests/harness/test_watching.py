"""What a reader saw once must be there at the end, in its place: the comparison behind that."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from integration.support.watching import CommittedOutput, Trace, VisibleRecord

FIRST, SECOND, THIRD = (VisibleRecord(0, offset, b"k", b"%d" % offset) for offset in (3, 5, 9))


def vanished_records(seen: Sequence[VisibleRecord], end: Sequence[VisibleRecord]) -> list[str]:
    output = CommittedOutput.__new__(CommittedOutput)  # without its consumer
    output._topic, output._failure = "topic", ""
    output._changed = threading.Condition()
    output._traces = {}
    for record in seen:
        output._traces.setdefault(record.partition, Trace()).add(*record[1:])
    return output.vanished_records(end)


def test_records_added_after_the_last_read_are_not_reported() -> None:
    assert vanished_records([FIRST, SECOND], [FIRST, SECOND, THIRD]) == []
    assert vanished_records([], [FIRST]) == []


@pytest.mark.parametrize(
    "end",
    [
        pytest.param([FIRST], id="gone"),
        pytest.param([], id="all gone"),
        pytest.param([FIRST, SECOND._replace(value=b"x"), THIRD], id="another in its place"),
        pytest.param([FIRST, SECOND._replace(offset=6), THIRD], id="moved"),
        pytest.param([VisibleRecord(0, 1, b"k", b"1"), FIRST, SECOND], id="one slipped in before"),
        pytest.param([FIRST, SECOND._replace(partition=1)], id="in another partition"),
    ],
)
def test_records_that_vanished_or_changed_after_the_read_are_reported(
    end: list[VisibleRecord],
) -> None:
    (told,) = vanished_records([FIRST, SECOND], end)
    assert told.startswith("topic-0: the first 2 records")
