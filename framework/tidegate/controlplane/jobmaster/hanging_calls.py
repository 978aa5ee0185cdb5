"""The reaction of a job to calls that do not return, and the time limit of a user's stop.

A call of user code that does not return holds up its slot: no checkpoint completes, and a stop
cannot take its final checkpoint. So a stop waits no longer than `job.stop_grace_period`. The job
then ends as if it were canceled. Exactly-once holds: the close settles the last checkpoint and
fences the transactional ids, and the next run continues from that checkpoint. An attempt that fails
meanwhile gets an error that names the call, because its own error is only a consequence.

A stop cannot wait for a storage that is gone, hangs or fails either: nothing can be published,
settled or closed there. So the job ends before `job.stop_grace_period` has passed, as if all its
processes were killed. A cancel does the same while Kafka does not answer. The next run of the job
claims the journal, settles the last publication, and fences what the job has left open.
"""

from __future__ import annotations

from typing import Final

from tidegate.checkpoint.coordinator import Phase
from tidegate.controlplane.jobmaster.attempt import LiveAttempt
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.errors import (
    CheckpointError,
    StopTimedOutError,
    StorageError,
    TidegateError,
    UserCodeError,
)
from tidegate.message_text import clause
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.messages import StopJob
from tidegate.protocol.slot_metrics import HangingCall

HELD_UP_S: Final = 3.0
"""The time in seconds for which a cause must last before it ends a stop. A shorter absence of the
storage does not."""

WAIT_SHARE: Final = 0.5
"""The share of `job.stop_grace_period` for which a stop waits for a storage or for brokers. In the
rest, the processes of the job end."""


class StopGrace:
    """The time since a stop was requested."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._began_s: float | None = None
        self._cancels = False
        self._held_up_since_s: float | None = None

    def requested(self, now_s: float, stop: StopJob) -> None:
        """Record a stop of a user. A repeated request counts from the first one."""
        cancels = not stop.final_checkpoint
        if self._began_s is None or (cancels and not self._cancels):
            self._began_s = now_s - stop.waited_ms / 1000
        self._cancels = self._cancels or cancels

    def is_over(self, now_s: float, machine: JobMachine, live: LiveAttempt) -> bool:
        """Return whether the stop must not wait longer for a final checkpoint: a call hangs, and
        the checkpoint lacks a subtask.
        """
        if self._began_s is None or not machine.stop_requested:
            return False
        if live.coordinator.phase is Phase.FINISHED:
            return False
        late = now_s - self._began_s >= self._grace_s
        lacks = live.coordinator.pending is None or bool(live.coordinator.missing)
        return late and lacks and bool(live.hanging_calls())

    def timeout_error(
        self, now_s: float, machine: JobMachine, storage_problem: str, failure: TidegateError | None
    ) -> TidegateError | None:
        """Return the error with which the job ends now, because its stop has waited too long. None
        if the stop may wait, or nothing is known to hold it up.

        `storage_problem` says why the storage cannot be used now. `failure` is the error of
        requests that have failed for `HELD_UP_S`. Call this often.
        """
        if self._began_s is None or not machine.stop_requested:
            return None
        fails = isinstance(failure, StorageError) or (self._cancels and failure is not None)
        if not storage_problem:
            self._held_up_since_s = None
            if not fails:
                return None
        elif self._held_up_since_s is None:
            self._held_up_since_s = now_s
        lasts = self._held_up_since_s is not None and now_s - self._held_up_since_s >= HELD_UP_S
        cause = storage_problem if lasts else str(failure) if fails else ""
        if not cause or now_s - self._began_s < WAIT_SHARE * self._grace_s:
            return None
        what = "cancel" if self._cancels else "stop"
        return StopTimedOutError(
            f"The {what} did not wait longer within job.stop_grace_period. {clause(cause)}. The "
            "journal of the job is not closed: transactions of its last checkpoint may not be "
            "committed, and later ones may stay open until Kafka's transaction timeout. The next "
            "run of the job settles both before it reads."
        )


def stop_note(calls: tuple[HangingCall, ...], now_ms: int) -> str:
    """Return the note of a stop that did not wait longer for a call."""
    told = "; ".join(call.describe(now_ms) for call in calls)
    return (
        f"The stop did not wait longer than job.stop_grace_period. {told}. The slots were killed, "
        "so the job has no final checkpoint."
    )


def named_cause(
    error: TidegateError, calls: tuple[HangingCall, ...], now_ms: int, *, silent: bool = False
) -> tuple[TidegateError, ErrorReport]:
    """Return the error that names the hanging call if the call explains `error`, or `error`.

    It explains that checkpoints fail, and that a slot is silent.
    """
    if not calls or not (silent or isinstance(error, CheckpointError)):
        return error, ErrorReport.of(error)
    told = "; ".join(call.describe(now_ms) for call in calls)
    named = UserCodeError(
        f"{told}. So the attempt ended: {error} Correct the code, or give the call a timeout. The "
        "job restarts from its last checkpoint as the restart strategy says."
    )
    report = ErrorReport.of(named)
    stack = f"Stack of the call (most recent call last):\n{calls[0].stack}"
    return named, ErrorReport(
        kind=report.kind,
        domain=report.domain,
        retry=report.retry,
        message=report.message,
        traceback=stack,
    )
