"""A text that says what a job waits for now, for the status and the log (`delays.py`).

This module decides nothing and has no deadlines. The waiting code has its own.
"""

from __future__ import annotations

from tidegate.controlplane.jobmaster.attempt import LiveAttempt
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.controlplane.jobmaster.slot_shutdown import SlotShutdown
from tidegate.message_text import counted
from tidegate.protocol.job_state import JobState


def waits_for(machine: JobMachine, live: LiveAttempt | None, slot_shutdown: SlotShutdown) -> str:
    """Return a text that says what the job waits for. Empty if the job does not wait."""
    match machine.state:
        case JobState.CLOSING:
            return slot_shutdown.waits_for
        case JobState.INITIALIZING:
            return (
                "The recovery commits the last checkpoint and fences transactions of older attempts"
            )
        case JobState.WAITING_FOR_SLOTS:
            verb = "is" if machine.slots_missing == 1 else "are"
            return f"{counted(machine.slots_missing, 'slot')} {verb} missing"
        case JobState.DEPLOYING:
            return "The slots restore their state and open their functions"
        case JobState.RUNNING | JobState.STOPPING if live is not None:
            return live.waits_for()
    return ""
