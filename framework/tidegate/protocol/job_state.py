"""The state of a job: one enumeration for all processes, for the storage and for `--json`.

Messages, `--json` and `result.json` hold the value of a member. Three members have got Flink's and
Kafka's names since; their values stay, so that stored results are read. `shown` is for people. The
journal's entry `closed` has its own words for how a job ended: `outcome` and `ended_as` convert
them.
"""

from __future__ import annotations

import enum
from typing import Final


class JobState(enum.StrEnum):
    """The state of a job. The states in `ENDED` are terminal."""

    CREATED = "CREATED"
    INITIALIZING = "RECOVERING"
    RESTARTING = "BACKING_OFF"
    WAITING_FOR_SLOTS = "WAITING_FOR_SLOTS"
    DEPLOYING = "DEPLOYING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    CLOSING = "CLOSING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    FENCED = "DEPOSED"

    @property
    def shown(self) -> str:
        """Return the state in words, for logs and terminals."""
        return _SHOWN[self]

    @property
    def outcome(self) -> str:
        """Return the journal's word for this end of a job. Raise KeyError for a state that the
        journal has no word for.
        """
        return _OUTCOMES[self]


ENDED: Final = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELED, JobState.FENCED})

_SHOWN: Final = {
    JobState.CREATED: "created",
    JobState.INITIALIZING: "initializing",
    JobState.RESTARTING: "restarting",
    JobState.WAITING_FOR_SLOTS: "waiting for slots",
    JobState.DEPLOYING: "deploying",
    JobState.RUNNING: "running",
    JobState.STOPPING: "stopping",
    JobState.CLOSING: "closing",
    JobState.FINISHED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
    JobState.FENCED: "fenced",
}
_OUTCOMES: Final = {
    JobState.FINISHED: "finished",
    JobState.FAILED: "failed",
    JobState.CANCELED: "canceled",
}


def ended_as(outcome: str) -> JobState:
    """Return the state of a job whose journal was closed with this outcome. Raise KeyError for an
    unknown outcome.
    """
    return {stored: state for state, stored in _OUTCOMES.items()}[outcome]
