"""Requests for the slots of an attempt. They are repeated while slots are missing, up to a timeout.

A request can be lost, and so can a slot. The ResourceManager provides the slots. The job machine
decides what happens to an attempt that has waited for too long. Methods are called in the
JobMaster's loop.
"""

from __future__ import annotations

from typing import Final

from tidegate.controlplane.jobmaster.jobmanager_gateway import JobManagerGateway
from tidegate.ids import Attempt
from tidegate.ports.clock import Clock
from tidegate.protocol.messages import RequestSlots
from tidegate.protocol.submission import Submission

SLOT_REQUEST_INTERVAL_S: Final = 2.0
"""The time between two requests for missing slots, in seconds. A request can be lost."""


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
