"""The slots of a job: the requests for those of an attempt, and their exit at the end of the job.

A request can be lost, and so can a slot. So the requests are repeated while slots are missing, up
to a timeout. The ResourceManager provides the slots. The job machine decides what happens to an
attempt that has waited for too long.

The slots exit before the close of the journal. The close fences the job's transactional ids. A slot
that is still alive could open a transaction after the fencing, and no process would end it. So the
slots first close the user's functions. Then their processes end, and only then the journal is
closed. Both waits have a limit, because a host may be lost permanently. This module does not decide
when a job ends (`machine.py`) and does not close anything (`journal/journal_worker.py`). All
methods run in the JobMaster's loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidegate.controlplane.jobmaster.jobmanager_gateway import JobManagerGateway
from tidegate.controlplane.loop import EventLoop
from tidegate.ids import Attempt, SlotId
from tidegate.ports.clock import Clock
from tidegate.protocol.messages import RequestSlots
from tidegate.protocol.submission import Submission

SLOT_REQUEST_INTERVAL_S: Final = 2.0
"""The time between two requests for missing slots, in seconds. A request can be lost."""

RELEASE_S: Final = 10.0
"""The longest wait, in seconds, for the message that no slot is left. After this time their ids are
fenced in any case."""

CLOSE_S_MIN: Final = 3.0
"""The least time, in seconds, in which slots can close the user's functions. A shorter grace period
is for calls that hang, and a healthy slot needs some time in any case."""

POLL_S: Final = 0.02

_log = logging.getLogger(__name__)


class SlotRequests:
    """The requests of one JobMaster, which other processes reach at `address`."""

    def __init__(
        self,
        submission: Submission,
        manager: JobManagerGateway,
        clock: Clock,
        address: str,
        timeout_s: float,
    ) -> None:
        """Start without an attempt. `timeout_s` is `cluster.slot_request_timeout` in seconds."""
        self._submission, self._manager, self._clock = submission, manager, clock
        self._address, self._timeout_s = address, timeout_s
        self._requested_s = self._waiting_since_s = clock.monotonic()

    def begin(self) -> None:
        """Start the timeout, because an attempt begins."""
        self._waiting_since_s = self._clock.monotonic()

    def send_request(self, attempt: Attempt) -> None:
        """Request all slots of the attempt. A repeated request does not bring additional slots."""
        self._requested_s = self._clock.monotonic()
        self._manager.send(
            RequestSlots(
                job=self._submission.job,
                epoch=self._manager.epoch,
                attempt=attempt,
                count=self._submission.parallelism,
                jobmaster_address=self._address,
            )
        )

    def repeat_request(self, waiting: Attempt | None) -> bool:
        """Request the slots again if the last request is `SLOT_REQUEST_INTERVAL_S` old. Return True
        if the attempt has waited for longer than the timeout.

        `waiting` is the attempt that waits for slots, or None if no attempt waits.
        """
        now_s = self._clock.monotonic()
        if waiting is None:
            self._waiting_since_s = now_s
            return False
        if now_s - self._waiting_since_s > self._timeout_s:
            return True
        if now_s - self._requested_s >= SLOT_REQUEST_INTERVAL_S:
            self.send_request(waiting)
        return False


class SlotShutdown:
    """The wait for the slots at the end of a job, and the slots that are known to be gone."""

    def __init__(self, loop: EventLoop[Any], clock: Clock, close_timeout_s: float) -> None:
        """Create it. Slots get `close_timeout_s` to close the user's functions."""
        self._loop, self._clock, self._close_timeout_s = loop, clock, close_timeout_s
        self._closing_functions: set[SlotId] = set()
        self._released: Attempt | None = None
        self.waits_for = ""
        """A text that says what the end of the job waits for. Empty before the end begins."""

    def releasing(self, attempt: Attempt) -> None:
        """Record that the ResourceManager is asked to end the slots of this attempt."""
        self._released = attempt

    def slots_released(self, attempt: Attempt) -> None:
        """Record the ResourceManager's message that no slot of this attempt is left."""
        if attempt == self._released:
            self._released = None

    def slot_exited(self, slot: SlotId) -> None:
        """Record that the process of a slot has ended."""
        self._closing_functions.discard(slot)

    def begin(
        self, slots: Iterable[SlotId], release: Callable[[], None], then: Callable[[], None]
    ) -> None:
        """Wait until `slots` have left, then call `then`. Call `release` before, when their
        processes should end: after they have closed the user's functions, or after the
        timeout for that.
        """
        self._closing_functions = set(slots)

        def functions_closed() -> None:
            release()
            self._wait("The processes of the slots end", self._are_gone, RELEASE_S, gone)

        def gone() -> None:
            if self._released is not None:
                extra = {"attempt": self._released}
                _log.warning(
                    "some slots did not confirm their exit; fencing their transactional ids",
                    extra=extra,
                )
            self.waits_for = (
                "The last checkpoint is committed and the job's transactions are fenced"
            )
            then()

        self.waits_for = what = "The slots close their functions"
        self._loop.call_later(
            0.0,
            lambda: self._wait(what, self._have_closed, self._close_timeout_s, functions_closed),
        )

    def _have_closed(self) -> bool:
        return not self._closing_functions

    def _are_gone(self) -> bool:
        return self._released is None

    def _wait(
        self, what: str, is_over: Callable[[], bool], limit_s: float, then: Callable[[], None]
    ) -> None:
        self.waits_for = what
        until_s = self._clock.monotonic() + limit_s

        def poll() -> None:
            if is_over() or self._clock.monotonic() >= until_s:
                then()
            else:
                self._loop.call_later(POLL_S, poll)

        poll()
