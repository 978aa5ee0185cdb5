"""The client of a cluster: it submits jobs, reads their reports, stops them and waits for them.

The command line and tests use it. While a client waits, the JobManager may be killed, and the next
one may have another address. The client therefore repeats its requests for as long as the caller
allows. It also repeats a submit: the cluster recognizes the repetition by the submission id.
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
    ListJobs,
    Message,
    Refused,
    StopJob,
    SubmitJob,
)
from tidegate.protocol.reports import JobList, JobReport
from tidegate.protocol.submission import Submission

POLL_S = 0.2
POLL_S_MAX = 2.0
"""Seconds between two requests of `wait`. The pause starts at POLL_S and grows by half after each
report that has no news, up to POLL_S_MAX. A JobMaster has news at most twice per second."""
ANSWER_TIMEOUT_S = 60.0
"""Time in seconds for which requests are repeated while no JobManager answers. After a JobManager
dies, the next one is up within seconds."""
START_TIMEOUT_S = 30.0
"""Time in seconds for which a stop waits for a JobMaster that its host cannot start. If the host
lacks memory or process ids only briefly, it has them again within this time."""
SUBMIT_TIMEOUT_S = 30.0
"""RPC timeout of a submit in seconds. The JobManager replies after it has stored the submission,
and the storage may be slow."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class _RefusedStarts:
    """The time for which every report of a job has said that its JobMaster cannot start."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_s: float | None = None

    def too_long(self, report: JobReport) -> bool:
        """Record this report. Return whether a stop must end its wait (START_TIMEOUT_S)."""
        if not report.start_refused:
            self._since_s = None
            return False
        now_s = self._clock.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= START_TIMEOUT_S


class Client:
    """A connection to the JobManager at `address`.

    `address` may be a function that returns the address of the current JobManager.
    """

    def __init__(
        self,
        rpc: Rpc,
        clock: Clock,
        address: str | Callable[[], str],
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> None:
        """`answer_timeout_s` limits how long a request is repeated while no JobManager answers."""
        self._rpc = rpc
        self._answer_timeout_s = answer_timeout_s
        self._clock = clock
        self._address = address
        self._connected: tuple[str, RpcClient] | None = None

    def submit(self, submission: Submission, code: bytes = b"") -> None:
        """Submit a job. It starts once, even if the request is repeated.

        Return when the submission is durable: from then on the job runs, whatever happens to the
        processes of the cluster. `code` is the archive whose digest is in the submission.

        Raise RefusedError if the cluster does not accept the submission. Raise RpcError if no
        JobManager has answered for `answer_timeout_s`: the cluster may then have accepted it or
        not.
        """
        if not submission.id:
            submission = msgspec.structs.replace(submission, id=secrets.token_hex(8))
        message = SubmitJob(submission=submission, code=code)
        self._retry(lambda: self._call(message, Acknowledge, SUBMIT_TIMEOUT_S))

    def wait_until_up(self) -> None:
        """Return when a JobManager answers, or raise RpcError after `answer_timeout_s`."""
        self._retry(self.list)

    def report(self, job: JobName) -> JobReport:
        """Return the current report of a job. Raise RefusedError if the cluster has no such job."""
        return self._call(GetJob(job=job), JobReport)

    def list(self) -> JobList:
        """Return all jobs and TaskManagers of the cluster."""
        return self._call(ListJobs(), JobList)

    def stop(self, job: JobName, *, final_checkpoint: bool = True, drain: bool = False) -> None:
        """Ask the cluster to end the job with a final checkpoint, or to cancel it. With `drain`,
        all timers and windows fire first.

        The job ends some time after this method returns.
        """
        self._call(StopJob(job=job, final_checkpoint=final_checkpoint, drain=drain), Acknowledge)

    def stop_and_wait(
        self,
        job: JobName,
        *,
        final_checkpoint: bool = True,
        drain: bool = False,
        on_report: Callable[[JobReport], None] | None = None,
    ) -> JobReport:
        """Stop the job and wait until it has ended. Return its last report. `on_report` is called
        with every report.

        If the host has refused to start the job's JobMaster for START_TIMEOUT_S, return the report
        of that time. Its state is not in ENDED, and `start_refused` says why. The JobManager
        carries out the stop when the JobMaster starts.

        The stop is sent again to each new JobManager, because a JobManager keeps it in memory only.
        It is not sent again after every report: another job of the same name may be submitted
        between the end of this job and the next report.

        While the JobManager is down, the request is repeated, as for a submit. Raise RefusedError
        if the cluster does not know the job, or if the job had already ended. Raise RpcError if no
        JobManager has answered for `answer_timeout_s`.
        """
        stop_sent_epoch = self._retry(lambda: self.report(job).epoch)
        unanswered = False

        def send_stop() -> None:
            nonlocal unanswered
            try:
                self.stop(job, final_checkpoint=final_checkpoint, drain=drain)
            except RpcError:
                unanswered = True
                raise
            except RefusedError:
                # A try whose reply was lost may have ended the job: the next report says so.
                if not unanswered:
                    raise

        self._retry(send_stop)

        def resend_stop(report: JobReport) -> None:
            nonlocal stop_sent_epoch
            if on_report is not None:
                on_report(report)
            if report.epoch == stop_sent_epoch or report.state in ENDED:
                return
            try:
                self.stop(job, final_checkpoint=final_checkpoint, drain=drain)
            except RefusedError:
                pass  # the job has ended meanwhile, as the next report will say
            except RpcError:
                return  # sent again after the next report
            stop_sent_epoch = report.epoch

        return self.wait(job, resend_stop, until=_RefusedStarts(self._clock).too_long)

    def wait(
        self,
        job: JobName,
        on_report: Callable[[JobReport], None] | None = None,
        *,
        until: Callable[[JobReport], bool] | None = None,
        timeout_s: float | None = None,
    ) -> JobReport:
        """Wait until the job has ended, or `until` returns True. Return its last report.

        `on_report` is called with every report. Raise RpcError if no JobManager has answered for
        `answer_timeout_s`, or after `timeout_s` in total.
        """
        clock = self._clock
        began = last_answer_s = clock.monotonic()
        pause_s = POLL_S
        before: JobReport | None = None
        while True:
            try:
                report = self.report(job)
            except RpcError:
                if clock.monotonic() - last_answer_s > self._answer_timeout_s:
                    raise
            else:
                last_answer_s = clock.monotonic()
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
                if self._clock.monotonic() - began > self._answer_timeout_s:
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
