"""Requests for the slots of an attempt: they are repeated while slots are missing, up to a limit.

A request may be lost, and so may a slot. The ResourceManager brings the slots, and the job machine
says what becomes of an attempt that has waited for too long. Methods are called in the JobMaster's
loop.
"""

from __future__ import annotations

from typing import Final

from tidegate.controlplane.jobmaster.jobmanager_gateway import JobManagerGateway
from tidegate.ids import Attempt
from tidegate.ports.clock import Clock
from tidegate.protocol.messages import RequestSlots, Submission

SLOT_REQUEST_INTERVAL_S: Final = 2.0
"""Between two requests for slots that are missing: a message may be lost."""


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
        """`timeout_s` is `cluster.slot_request_timeout`."""
        self._submission, self._manager, self._clock = submission, manager, clock
        self._address, self._timeout_s = address, timeout_s
        self._asked_s = self._waiting_since_s = clock.monotonic()

    def begin(self) -> None:
        """An attempt begins, and the time that it may wait begins with it."""
        self._waiting_since_s = self._clock.monotonic()

    def ask(self, attempt: Attempt) -> None:
        """Request all slots of the attempt. A repeated request brings no more slots than one."""
        self._asked_s = self._clock.monotonic()
        self._manager.send(
            RequestSlots(
                job=self._submission.job,
                epoch=self._manager.epoch,
                attempt=attempt,
                count=self._submission.parallelism,
                jobmaster_address=self._address,
            )
        )

    def keep_asking(self, waiting: Attempt | None) -> bool:
        """Request slots again when it is time to; True once the attempt has waited for too long.

        `waiting` is the attempt that waits for slots, or None if none does.
        """
        now_s = self._clock.monotonic()
        if waiting is None:
            self._waiting_since_s = now_s
            return False
        if now_s - self._waiting_since_s > self._timeout_s:
            return True
        if now_s - self._asked_s >= SLOT_REQUEST_INTERVAL_S:
            self.ask(waiting)
        return False
