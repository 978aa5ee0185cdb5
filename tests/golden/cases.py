"""The cases of golden storages: those of the agreement tests, and one with event time.

The one with event time is not run by the agreement tests, which have other pipelines for it.
"""

from __future__ import annotations

from typing import Final

from integration.agreement import cases
from integration.agreement.cases import Case
from integration.agreement.inputs import Dataset
from tests.golden.event_time import ALL_VISITS, EventTimes, visits

EVENT_TIMES: Final = Case("event-times", EventTimes, {"visits": Dataset(visits, size=ALL_VISITS)})


def case_of(name: str) -> Case:
    """Return the case with this name."""
    return EVENT_TIMES if name == EVENT_TIMES.name else cases.case_of(name)
