"""The client of a cluster: submits jobs, asks for them, stops them, waits for them.

Used by the command line and by tests. A JobManager may be killed and come back at another address
while a client waits; questions are therefore repeated for as long as the caller allows, and so is a
submit: its id tells the cluster that it is the same one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec

from tidegate.errors import RefusedError, RpcError, check
from tidegate.ids import JobName
from tidegate.ports.clock import Clock
from tidegate.ports.rpc import Rpc, RpcClient
from tidegate.protocol.job_state import ENDED
from tidegate.protocol.messages import (
    Acknowledge,
    GetJob,
    JobList,
    JobReport,
    ListJobs,
    Message,
    Refused,
    StopJob,
    Submission,
    SubmitJob,
)

POLL_S = 0.2
POLL_S_MAX = 2.0
"""Between two questions while waiting: from the first, half as much again after each answer that
says nothing new, to the second. A JobMaster has news twice a second at most."""
PATIENCE_S = 60.0
"""How long questions are repeated while no JobManager answers: a dead one is back within
seconds."""
START_PATIENCE_S = 30.0
"""How long a stop waits for a JobMaster that its host cannot start: a host that is short of memory
or process ids for a moment has them again by then."""
SUBMIT_TIMEOUT_S = 30.0
"""A submit is answered when it is stored, and a store may take its time."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class _RefusedStarts:
    """How long the reports of a job have said without a break that its JobMaster cannot start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None

    def too_long(self, report: JobReport) -> bool:
        """Whether a stop waits no longer, by this report and those before it."""
        if not report.start_refused:
            self._since_s = None
            return False
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= START_PATIENCE_S


class Client:
    """Talks to the JobManager at `address`, which may be a function that knows the present one."""

    def __init__(
        self,
        rpc: Rpc,
        clock: Clock,
        address: str | Callable[[], str],
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """`patience_s`: how long a JobManager is waited for that nobody reaches."""
        self._rpc = rpc
        self._patience_s = patience_s
        self._clock = clock
        self._address = address
        self._connected: tuple[str, RpcClient] | None = None

    def submit(self, submission: Submission, code: bytes = b"") -> None:
        """Start a job, once; returns when it will run whatever happens to the cluster.

        `code` is the archive that the submission names.

        RefusedError where the cluster does not take it, RpcError when nobody has answered for the
        patience: then it may have been taken, or not.
        """
        if not submission.id:
            submission = msgspec.structs.replace(submission, id=secrets.token_hex(8))
        message = SubmitJob(submission=submission, code=code)
        self._retry(lambda: self._call(message, Acknowledge, SUBMIT_TIMEOUT_S))

    def wait_until_up(self) -> None:
        """Return when a JobManager answers; RpcError if none has within the patience."""
        self._retry(self.list)

    def report(self, job: JobName) -> JobReport:
        """The job as it is; RefusedError if the cluster knows none of that name."""
        return self._call(GetJob(job=job), JobReport)

    def list(self) -> JobList:
        """All jobs and TaskManagers."""
        return self._call(ListJobs(), JobList)

    def stop(self, job: JobName, *, final_checkpoint: bool = True) -> None:
        """Have the job end: with a final checkpoint, or cancelled. It ends some time later."""
        self._call(StopJob(job=job, final_checkpoint=final_checkpoint), Acknowledge)

    def stop_and_wait(self, job: JobName, *, final_checkpoint: bool = True) -> JobReport:
        """Stop the job and wait until it has ended; its last report.

        If the host has refused to start the job's JobMaster for START_PATIENCE_S, the report of
        that moment is returned: its state is none of ENDED, and `start_refused` says why. The
        JobManager carries out the stop when the JobMaster starts.

        Told to every JobManager anew: what one was told dies with it. Not at every report, because
        another job of the name may be submitted between the end and the next of them.

        A JobManager that is down is waited for, as at a submit. RefusedError if the cluster does
        not know the job, or if it had ended before; RpcError when nobody has answered for the
        patience.
        """
        told = self._retry(lambda: self.report(job).epoch)
        unanswered = False

        def tell() -> None:
            nonlocal unanswered
            try:
                self.stop(job, final_checkpoint=final_checkpoint)
            except RpcError:
                unanswered = True
                raise
            except RefusedError:
                # A try whose reply was lost may have ended the job: the next report says so.
                if not unanswered:
                    raise

        self._retry(tell)

        def tell_again(report: JobReport) -> None:
            nonlocal told
            if report.epoch == told or report.state in ENDED:
                return
            try:
                self.stop(job, final_checkpoint=final_checkpoint)
            except RefusedError:
                pass  # the job has ended meanwhile, as the next report will say
            except RpcError:
                return  # told with the next report
            told = report.epoch

        return self.wait(job, tell_again, until=_RefusedStarts(self._clock).too_long)

    def wait(
        self,
        job: JobName,
        on_report: Callable[[JobReport], None] | None = None,
        *,
        until: Callable[[JobReport], bool] | None = None,
        timeout_s: float | None = None,
    ) -> JobReport:
        """Wait until the job has ended, or `until` says so; returns its last report.

        `on_report` hears of every report. RpcError when nobody has answered for the patience, or
        after `timeout_s` in all.
        """
        clock = self._clock
        began = heard = clock.monotonic()
        pause_s = POLL_S
        before: JobReport | None = None
        while True:
            try:
                report = self.report(job)
            except RpcError:
                if clock.monotonic() - heard > self._patience_s:
                    raise
            else:
                heard = clock.monotonic()
                if on_report is not None:
                    on_report(report)
                if report.state in ENDED or (until is not None and until(report)):
                    return report
                pause_s = POLL_S if report.differs_from(before) else min(pause_s * 1.5, POLL_S_MAX)
                before = report
            if timeout_s is not None and clock.monotonic() - began > timeout_s:
                raise RpcError(f"Job {job} has not come so far within {timeout_s:g} s.")
            clock.sleep(pause_s)

    def close(self) -> None:
        if self._connected is not None:
            self._connected[1].close()
            self._connected = None

    def _retry(self, ask: Callable[[], T]) -> T:
        began = self._clock.monotonic()
        while True:
            try:
                return ask()
            except RpcError:
                if self._clock.monotonic() - began > self._patience_s:
                    raise
                self._clock.sleep(POLL_S)

    def _call(self, message: Message, expected: type[M], timeout_s: float = 10.0) -> M:
        reply = self._client().call(message, timeout_s)
        if isinstance(reply, Refused):
            raise RefusedError(reply.reason)
        check(isinstance(reply, expected), f"{reply} is no reply to {type(message).__name__}.")
        typed: M = reply
        return typed

    def _client(self) -> RpcClient:
        address = self._address if isinstance(self._address, str) else self._address()
        if self._connected is None or self._connected[0] != address:
            self.close()
            self._connected = (address, self._rpc.connect(address))
        return self._connected[1]
