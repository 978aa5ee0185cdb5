"""The reaction of a job to calls of user code that do not return.

Such a call holds up its slot: no checkpoint completes, and a stop cannot take its final checkpoint.
So a stop waits no longer than `job.stop_grace_period`. The job then ends as if it were canceled.
Exactly-once holds: the close settles the last checkpoint and fences the transactional ids, and the
next run continues from that checkpoint. An attempt that fails meanwhile gets an error that names
the call, because its own error is only a consequence.
"""

from __future__ import annotations

from tidegate.checkpoint.coordinator import Phase
from tidegate.controlplane.jobmaster.attempt import LiveAttempt
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.errors import CheckpointError, TidegateError, UserCodeError
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.slot_metrics import HangingCall


class StopGrace:
    """The time since a stop was requested."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._began_s: float | None = None

    def is_over(self, now_s: float, machine: JobMachine, live: LiveAttempt) -> bool:
        """Return whether the stop must not wait longer for a final checkpoint: a call hangs, and
        the checkpoint lacks a subtask.

        Call this often, because the grace period begins at the first call after the stop.
        """
        if not machine.stop_requested or live.coordinator.phase is Phase.FINISHED:
            return False
        if self._began_s is None:
            self._began_s = now_s
        late = now_s - self._began_s >= self._grace_s
        lacks = live.coordinator.pending is None or bool(live.coordinator.missing)
        return late and lacks and bool(live.hanging_calls())


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
