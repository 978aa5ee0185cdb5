"""The JobMaster's connection to its JobManager: registration, ordered requests, the newest report.

Requests are few, and their callers repeat them. Reports come twice a second while there is news,
and rarely otherwise. Only the newest report counts. The parent pipe ends this process together with
its JobManager. So a message is repeated until it is delivered, also after an unexpected error on
either side. The JobManager ends a JobMaster that delivers nothing. A JobManager that refuses a
report has another JobMaster for the job.

Only `is_current` times out. By then the JobManager is gone and the parent pipe has failed, or the
JobManager hangs and will start another JobMaster.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from tidegate.errors import RpcError
from tidegate.ids import JobName, LeaderEpoch
from tidegate.ports.clock import Clock
from tidegate.ports.rpc import RpcClient
from tidegate.ports.threads import Threads
from tidegate.protocol.messages import JobMasterAccepted, Message, Refused, RegisterJobMaster
from tidegate.protocol.reports import JobReport, ReportJob
from tidegate.protocol.versions import PYTHON, TIDEGATE

RETRY_PAUSE_S: Final = 0.1
ANSWER_TIMEOUT_S: Final = 60.0
"""The time in seconds for which a JobManager may be silent to a JobMaster that wants to claim. It
is four times the default heartbeat timeout."""
DRAIN_S: Final = 5.0
"""The time in seconds for the messages that are still to be sent at the end of the process."""
DRAIN_WITHOUT_STORAGE_S: Final = 2.0
"""The same time if the JobManager cannot store the result, and so does not answer the last report.
It has the report, and releases the slots when this process has ended."""

_log = logging.getLogger(__name__)


class JobManagerGateway:
    """A sender of messages to the JobManager, from one thread. Any thread may call each method."""

    def __init__(
        self,
        client: RpcClient,
        clock: Clock,
        threads: Threads,
        job: JobName,
        epoch: LeaderEpoch,
        *,
        on_replaced: Callable[[], None],
    ) -> None:
        """Create the gateway. `on_replaced` is called when another JobMaster has taken this
        process's place, or when `is_current` times out. It is called in the sending thread, or in
        the thread that calls `is_current`.
        """
        self.epoch = epoch
        self.storage = ""
        """The id of the checkpoint storage, from the JobManager's answer to the registration."""
        self._on_replaced = on_replaced
        self._client, self._clock, self._threads = client, clock, threads
        self._job = job
        self._waiting: deque[Message] = deque()
        self._report: JobReport | None = None
        self._changed = threads.condition()
        self._busy = False

    def register(self, address: str, pid: int) -> JobMasterAccepted | None:
        """Register the address of this JobMaster. Return None if another has taken its place."""
        self._registration = RegisterJobMaster(
            job=self._job,
            epoch=self.epoch,
            address=address,
            pid=pid,
            tidegate_version=TIDEGATE,
            python_version=PYTHON,
        )
        accepted = self._send_registration()
        if accepted is not None:
            self._threads.start(self._send_all, name="to-jobmanager")
        return accepted

    def is_current(self) -> bool:
        """Return whether this process is still the job's JobMaster. This asks until the JobManager
        answers. It returns False if the JobManager has not answered for `ANSWER_TIMEOUT_S`.

        The request is a repeated registration. It changes nothing for a registered JobMaster.
        """
        end_s = self._clock.monotonic() + ANSWER_TIMEOUT_S
        current = None
        while current is None:
            try:
                current = self._send_registration() is not None
            except RpcError as error:
                if self._clock.monotonic() >= end_s:
                    _log.warning("no JobManager answers", extra={"error": str(error)})
                    current = False
                else:
                    _log.debug("the JobManager does not answer", extra={"error": str(error)})
                    self._clock.sleep(RETRY_PAUSE_S)
        if not current:
            self._on_replaced()
        return current

    def _send_registration(self) -> JobMasterAccepted | None:
        reply = self._client.call(self._registration)
        if isinstance(reply, JobMasterAccepted):
            self.storage = reply.storage
            return reply
        reason = reply.reason if isinstance(reply, Refused) else str(reply)
        _log.warning("this JobMaster was replaced", extra={"reason": reason})
        return None

    def send(self, message: Message) -> None:
        """Queue a request, which is delivered after earlier requests."""
        with self._changed:
            self._waiting.append(message)
            self._changed.notify_all()

    def report(self, report: JobReport) -> None:
        """Queue a report. A newer report replaces it if it was not delivered yet."""
        with self._changed:
            self._report = report
            self._changed.notify_all()

    def report_now(self, report: JobReport) -> None:
        """Deliver a report. Return when everything is delivered, or after `DRAIN_S`."""
        self.report(report)
        self.drain()

    def drain(self, limit_s: float = DRAIN_S) -> None:
        """Return when everything is delivered, or after `limit_s`."""
        with self._changed:
            self._changed.wait_for(
                lambda: not (self._waiting or self._report or self._busy), limit_s
            )

    def _send_all(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._report)
                if self._report is not None:
                    message: Message = ReportJob(epoch=self.epoch, report=self._report)
                    self._report = None
                else:
                    message = self._waiting.popleft()
                self._busy = True
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        while True:
            try:
                reply = self._client.call(message)
            except Exception as error:  # noqa: BLE001  # else nothing would be delivered
                if isinstance(error, RpcError):
                    _log.debug("the JobManager does not answer", extra={"error": str(error)})
                else:
                    described = f"{type(error).__name__}: {error}"
                    kind = type(message).__name__
                    _log.warning("a message failed", extra={"kind": kind, "error": described})
                if isinstance(message, ReportJob) and self._report is not None:
                    return  # a newer report waits
                self._clock.sleep(RETRY_PAUSE_S)
                continue
            if isinstance(reply, Refused):
                _log.warning(
                    "the JobManager refused",
                    extra={"kind": type(message).__name__, "reason": reply.reason},
                )
                if isinstance(message, ReportJob):
                    self._on_replaced()
            return
