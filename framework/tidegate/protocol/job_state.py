"""Where a job stands: one enumeration for all processes, for the storage and for `--json`.

The value of a member is what stands in messages and in `result.json`, whatever the member is called
in Python. `shown` is for people. The journal's entry `closed` has words of its own for how a job
ended: `outcome` and `ended_as`.
"""

from __future__ import annotations

import enum
from typing import Final


class JobState(enum.StrEnum):
    """Where a job stands; `ENDED` are terminal."""

    CREATED = "CREATED"
    RECOVERING = "RECOVERING"
    BACKING_OFF = "BACKING_OFF"
    WAITING_FOR_SLOTS = "WAITING_FOR_SLOTS"
    DEPLOYING = "DEPLOYING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    CLOSING = "CLOSING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    DEPOSED = "DEPOSED"

    @property
    def shown(self) -> str:
        """The state in words, for logs and terminals."""
        return _SHOWN[self]

    @property
    def outcome(self) -> str:
        """How the journal calls this end of a job; KeyError for a state that is none."""
        return _OUTCOMES[self]


ENDED: Final = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELED, JobState.DEPOSED})

_SHOWN: Final = {
    JobState.CREATED: "created",
    JobState.RECOVERING: "recovering",
    JobState.BACKING_OFF: "backing off",
    JobState.WAITING_FOR_SLOTS: "waiting for slots",
    JobState.DEPLOYING: "deploying",
    JobState.RUNNING: "running",
    JobState.STOPPING: "stopping",
    JobState.CLOSING: "closing",
    JobState.FINISHED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
    JobState.DEPOSED: "deposed",
}
_OUTCOMES: Final = {
    JobState.FINISHED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
}


def ended_as(outcome: str) -> JobState:
    """The state of a job whose journal was closed with this outcome; KeyError for no outcome."""
    return {stored: state for state, stored in _OUTCOMES.items()}[outcome]
