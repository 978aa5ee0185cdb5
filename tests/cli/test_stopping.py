"""Ctrl-C in `tidegate run`: when and where a stop is sent, and what a second Ctrl-C does."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, cast

import pytest

from tidegate.cli.run import stopping
from tidegate.cli.run.stopping import (
    RunStop,
    SecondInterruptError,
    StoppedBeforeStartError,
    StopRequest,
)
from tidegate.errors import RefusedError, RpcError, TidegateError
from tidegate.ids import JobName
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport

if TYPE_CHECKING:
    from tidegate.controlplane.client.client import Client
    from tidegate.terminal.display import Display

JOB = JobName("a")


class Cluster:
    """A client and a display, and how often the JobManager was started again."""

    def __init__(self) -> None:
        self.restarts = 0
        self.told = 0
        self.error: TidegateError | None = None
        self.asked: list[tuple[bool, bool]] = []
        self.waits_for = ""
        self.stop_of_run = RunStop(JOB, cast("Display", self))
        self.stop_of_run.attach(cast("Client", self), lambda: self.restarts)

    def stop(self, job: JobName, *, final_checkpoint: bool, drain: bool) -> None:
        if self.error is not None:
            raise self.error
        self.asked.append((final_checkpoint, drain))
        self.told += 1

    def show(self, report: JobReport) -> None:
        pass

    def stopping(self, *, final_checkpoint: bool = True) -> None:
        pass

    def waiting_to_start(self, storage: str) -> None:
        self.waits_for = storage

    def report(self, state: str = "RUNNING") -> int:
        """Reports once more and returns how many stops have been sent."""
        self.stop_of_run.reported(JobReport(job=JOB, state=JobState(state), jobmaster_pid=1))
        return self.told


def test_stop_is_sent_once_to_each_jobmanager_of_a_run() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        assert cluster.report() == 0
        signal.raise_signal(signal.SIGINT)
        assert [cluster.report(), cluster.report()] == [1, 1]
        cluster.restarts += 1
        assert [cluster.report(), cluster.report()] == [2, 2]
        cluster.restarts += 1
        assert cluster.report("FINISHED") == 2


def test_stop_that_was_not_delivered_is_sent_again() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        signal.raise_signal(signal.SIGTERM)
        cluster.error = RpcError("nobody answers")
        assert cluster.report() == 0
        cluster.error = None
        assert cluster.report() == 1


def test_a_stop_of_a_job_that_has_just_ended_is_no_error() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        signal.raise_signal(signal.SIGINT)
        cluster.error = RefusedError("it has ended already")
        assert cluster.report() == 0


def test_second_interrupt_leaves_the_run_at_once() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SecondInterruptError):
            signal.raise_signal(signal.SIGINT)


def test_request_of_another_terminal_is_sent_as_it_was_made() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        cluster.stop_of_run.request(StopRequest(final_checkpoint=True, drain=True))
        assert cluster.report() == 1
        cluster.stop_of_run.request(StopRequest(final_checkpoint=False))
        assert [cluster.report(), cluster.report()] == [2, 2]
    assert cluster.asked == [(True, True), (False, False)]


def test_first_ctrl_c_after_a_request_of_another_terminal_does_not_leave_at_once() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        cluster.stop_of_run.request(StopRequest())
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(SecondInterruptError):
            signal.raise_signal(signal.SIGINT)


def test_signal_makes_no_other_stop_of_a_cancel_from_another_terminal() -> None:
    cluster = Cluster()
    with cluster.stop_of_run:
        cluster.stop_of_run.request(StopRequest(final_checkpoint=False))
        signal.raise_signal(signal.SIGTERM)
        cluster.report()
    assert cluster.asked == [(False, False)]


def test_interrupt_while_the_storage_does_not_store_the_job_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stopping, "TOLD_AFTER_S", 0.0)
    cluster = Cluster()

    def submit() -> None:
        with cluster.stop_of_run.submitting("/mnt/x"):
            until_s = time.monotonic() + 30
            while not cluster.waits_for and time.monotonic() < until_s:
                time.sleep(0.01)
            assert cluster.waits_for == "/mnt/x"
            signal.raise_signal(signal.SIGINT)

    with cluster.stop_of_run:
        with pytest.raises(StoppedBeforeStartError):
            submit()
        assert cluster.report() == 0
        signal.raise_signal(signal.SIGINT)
        assert cluster.report() == 1
