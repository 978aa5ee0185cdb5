"""A report keeps its content in the storage, and its time alone is no news."""

from __future__ import annotations

import msgspec

from tidegate.ids import JobName
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport

REPORT = JobReport(job=JobName("a"), state=JobState.RUNNING)


def test_report_is_read_back_equal_from_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(REPORT), type=JobReport) == REPORT


def test_a_report_with_another_time_only_does_not_differ() -> None:
    later = msgspec.structs.replace(REPORT, reported_ms=5)
    assert not later.differs_from(REPORT)
    assert msgspec.structs.replace(later, records_in=1).differs_from(REPORT)
    assert REPORT.differs_from(None)
