"""The client and the local cluster, before a JobManager that answers and dies as each test says."""

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.controlplane.jobmanager.dispatching import submission
from tests.controlplane.test_loop import VirtualClock
from tidegate.controlplane.client.client import ANSWER_TIMEOUT_S, START_TIMEOUT_S, Client
from tidegate.controlplane.client.local import FAILED_STARTS_MAX, REFUSED_S_MAX, LocalCluster
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import ExternalError, RefusedError, ResourceExhaustedError, RpcError
from tidegate.ids import JobName
from tidegate.ports.processes import NO_RESOURCES
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import Acknowledge, ListJobs, Message, Refused, StopJob, SubmitJob
from tidegate.protocol.reports import JobList, JobReport

A = JobName("a")


class Lines:
    """An Rpc whose calls are answered by a list: a message, or an error that is raised."""

    def __init__(self, *answers: Message | Exception) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[str, Message]] = []

    def connect(self, address: str) -> Any:
        lines = self

        class Line:
            def call(self, message: Message, timeout_s: float = 10.0) -> Message:
                lines.calls.append((address, message))
                answer = lines.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer

            def close(self) -> None:
                pass

        return Line()

    def serve(self, handler: Any, port: int = 0) -> Any:
        raise NotImplementedError


def state(name: str, epoch: int = 0) -> JobReport:
    return JobReport(job=A, state=JobState(name), epoch=epoch)


def test_submit_has_an_id_and_is_retried_with_the_same_id() -> None:
    addresses = iter(["one", "two", "two"])
    lines = Lines(RpcError("gone"), Acknowledge(), Acknowledge())
    client = Client(lines, VirtualClock(), lambda: next(addresses))
    client.submit(submission())
    client.submit(submission())
    assert [address for address, _ in lines.calls] == ["one", "two", "two"]
    first, again, another = (message for _, message in lines.calls)
    assert isinstance(first, SubmitJob)
    assert isinstance(another, SubmitJob)
    assert first.submission.id
    assert first == again
    assert first.submission.id != another.submission.id


def test_submit_fails_after_the_answer_timeout_and_at_once_on_refusal() -> None:
    gone = Client(Lines(*[RpcError("gone")] * 100), VirtualClock(), "here", answer_timeout_s=3)
    with pytest.raises(RpcError, match="gone"):
        gone.submit(submission())
    refused = Client(Lines(Refused(reason="live")), VirtualClock(), "here")
    with pytest.raises(RefusedError, match="live"):
        refused.submit(submission())


def test_client_waits_for_the_cluster_until_the_answer_timeout() -> None:
    late = Lines(RpcError("nobody"), RpcError("nobody"), JobList(jobs=()))
    Client(late, VirtualClock(), "here").wait_until_up()
    assert len(late.calls) == 3
    never = Client(Lines(*[RpcError("nobody")] * 100), VirtualClock(), "here", answer_timeout_s=3)
    with pytest.raises(RpcError, match="nobody"):
        never.wait_until_up()


def test_refused_stop_raises_refused_error() -> None:
    client = Client(Lines(Refused(reason="unknown")), VirtualClock(), "here")
    with pytest.raises(RefusedError, match="unknown"):
        client.stop(A)


def test_wait_returns_when_the_job_ends_and_follows_the_jobmanager_to_a_new_address() -> None:
    addresses = iter(["one", "one", "two", "two"])
    lines = Lines(state("RUNNING"), RpcError("gone"), state("RECOVERING"), state("FINISHED"))
    seen: list[str] = []
    client = Client(lines, VirtualClock(), lambda: next(addresses))
    assert client.wait(A, lambda report: seen.append(report.state)).state == "FINISHED"
    assert seen == ["RUNNING", "RECOVERING", "FINISHED"]
    assert [address for address, _ in lines.calls] == ["one", "one", "two", "two"]


def test_wait_fails_after_its_timeout_or_the_answer_timeout() -> None:
    client = Client(Lines(*[state("RUNNING")] * 100), VirtualClock(), "here")
    with pytest.raises(RpcError, match="has not come so far within 3 s"):
        client.wait(A, timeout_s=3)
    gone = Client(Lines(*[RpcError("gone")] * 100), VirtualClock(), "here", answer_timeout_s=3)
    with pytest.raises(RpcError, match="gone"):
        gone.wait(A)


def test_wait_polls_less_often_while_the_report_does_not_change() -> None:
    clock = VirtualClock()
    asked: list[float] = []
    same, other = state("RUNNING"), state("RECOVERING")
    lines = Lines(*[same] * 8, other, other, state("FINISHED"))
    Client(lines, clock, "here").wait(A, lambda _: asked.append(clock.now))
    pauses = [round(b - a, 3) for a, b in pairwise(asked)]
    assert pauses == [0.2, 0.3, 0.45, 0.675, 1.013, 1.519, 2.0, 2.0, 0.2, 0.3]


def test_wait_returns_early_when_its_condition_holds() -> None:
    client = Client(Lines(state("CREATED"), state("RUNNING")), VirtualClock(), "here")
    assert client.wait(A, until=lambda report: report.state == "RUNNING").state == "RUNNING"


def test_stop_and_list_send_one_request_without_a_retry() -> None:
    lines = Lines(Acknowledge())
    Client(lines, VirtualClock(), "here").stop(A, final_checkpoint=False)
    assert lines.calls == [("here", StopJob(job=A, final_checkpoint=False))]
    lines = Lines(RpcError("gone"))
    with pytest.raises(RpcError):
        Client(lines, VirtualClock(), "here").list()
    assert lines.calls == [("here", ListJobs())]


def stops(lines: Lines) -> list[int]:
    """The positions of the calls that were stops."""
    return [n for n, (_, message) in enumerate(lines.calls) if isinstance(message, StopJob)]


def test_stop_is_sent_again_to_each_new_jobmanager() -> None:
    """A JobManager keeps a stop in memory only. Without a repetition the next JobManager would run
    the job for ever.
    """
    lines = Lines(
        *(state("RUNNING", 1), Acknowledge()),
        *(state("RUNNING", 1), RpcError("gone")),
        *(state("CREATED", 2), RpcError("gone again"), state("CREATED", 2), Acknowledge()),
        *(state("RUNNING", 2), state("FINISHED", 2)),
    )
    assert Client(lines, VirtualClock(), "here").stop_and_wait(A).state == "FINISHED"
    assert stops(lines) == [1, 5, 7]
    assert {message for _, message in lines.calls if isinstance(message, StopJob)} == {
        StopJob(job=A)
    }


def test_stop_refused_because_the_job_ends_meanwhile_is_no_error() -> None:
    lines = Lines(
        *(
            state("RUNNING", 1),
            Acknowledge(),
            state("RUNNING", 2),
            Refused(reason="has ended already"),
        ),
        *(state("CLOSING", 2), state("CANCELED", 2)),
    )
    ended = Client(lines, VirtualClock(), "here").stop_and_wait(A, final_checkpoint=False)
    assert ended.state == "CANCELED"
    assert stops(lines) == [1, 3], "and to none that has nothing to stop"


def test_a_stop_waits_for_a_jobmanager_that_is_down() -> None:
    """A stop waits as a submit does: users send both while the cluster is restarted."""
    lines = Lines(
        *(RpcError("gone"), RpcError("gone"), state("RUNNING", 1)),
        *(RpcError("gone"), Acknowledge(), state("RUNNING", 1), state("FINISHED", 1)),
    )
    assert Client(lines, VirtualClock(), "here").stop_and_wait(A).state == "FINISHED"
    assert stops(lines) == [3, 4]


def test_stop_fails_if_no_jobmanager_answers_within_the_timeout() -> None:
    clock = VirtualClock()
    with pytest.raises(RpcError, match="gone"):
        Client(Lines(*[RpcError("gone")] * 1000), clock, "here").stop_and_wait(A)
    assert clock.now > ANSWER_TIMEOUT_S


def test_stop_whose_reply_was_lost_succeeds_if_the_job_has_ended_meanwhile() -> None:
    lines = Lines(
        *(state("RUNNING", 1), RpcError("lost"), Refused(reason="has ended already")),
        state("FINISHED", 1),
    )
    assert Client(lines, VirtualClock(), "here").stop_and_wait(A).state == "FINISHED"
    ended = Lines(state("FINISHED", 1), Refused(reason="has ended already"))
    with pytest.raises(RefusedError, match="has ended already"):
        Client(ended, VirtualClock(), "here").stop_and_wait(A)


REFUSED = JobReport(job=A, state=JobState.CREATED, start_refused="No process id is left.")


def test_stop_returns_with_the_reason_if_the_jobmaster_cannot_start() -> None:
    clock = VirtualClock()
    lines = Lines(REFUSED, Acknowledge(), *[REFUSED] * 1000)
    report = Client(lines, clock, "here").stop_and_wait(A, final_checkpoint=False)
    assert report == REFUSED
    assert stops(lines) == [1]
    assert START_TIMEOUT_S <= clock.now < START_TIMEOUT_S + 5


def test_stop_keeps_waiting_if_only_some_jobmaster_starts_are_refused() -> None:
    """A host that is temporarily short of memory refuses some starts."""
    clock = VirtualClock()
    answers = [*[REFUSED] * 10, state("RECOVERING")] * 10
    lines = Lines(REFUSED, Acknowledge(), *answers, state("CANCELED"))
    assert Client(lines, clock, "here").stop_and_wait(A, final_checkpoint=False).state == "CANCELED"
    assert clock.now > START_TIMEOUT_S


class Jobmanagers:
    """Processes whose JobManagers do as each test says."""

    def __init__(self) -> None:
        self.started: list[tuple[Callable[[int], None], Callable[[dict[str, Any]], None]]] = []
        self.refuses = 0
        self.refusal = ExternalError("no such program")

    def spawn(self, role: str, arguments: Any, **hooks: Any) -> Any:
        if self.refuses:
            self.refuses -= 1
            raise self.refusal
        self.started.append((hooks["on_exit"], hooks["on_ready"]))
        number = len(self.started)

        class Child:
            pid = number

            def terminate(self) -> None:
                hooks["on_exit"](0)

            kill = terminate

        return Child()

    def start_fork_server(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


class TestLocalCluster:
    def test_local_cluster_restarts_a_dead_jobmanager_and_follows_its_address(self) -> None:
        jobmanagers, restarts = Jobmanagers(), list[int]()
        cluster = LocalCluster(
            jobmanagers, Lines(), VirtualClock(), SystemThreads(), on_restart=restarts.append
        )
        exited, ready = jobmanagers.started[0]
        ready({"address": "one"})
        assert (cluster.address(), cluster.pid, cluster.restarts) == ("one", 1, 0)
        exited(-9)
        threading.Timer(0.05, lambda: jobmanagers.started[1][1]({"address": "two"})).start()
        assert (cluster.address(), cluster.pid, cluster.exits) == ("two", 2, (-9,))
        assert restarts == [-9]
        cluster.close()
        assert cluster.restarts == 1
        assert len(jobmanagers.started) == 2

    def test_local_cluster_fails_after_too_many_failed_jobmanager_starts(self) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        for number in range(FAILED_STARTS_MAX):
            jobmanagers.started[number][0](1)
        assert len(jobmanagers.started) == FAILED_STARTS_MAX
        assert clock.now > 1
        for question in (cluster.address, lambda: cluster.client().wait(A)):
            with pytest.raises(
                ExternalError, match=r"ends at its start: see its log jobmanager\.log"
            ):
                question()
        assert clock.now < ANSWER_TIMEOUT_S  # no call waits for a JobManager that does not come
        cluster.close()

    @pytest.mark.parametrize("status", [-9, -15, 0])
    def test_local_cluster_survives_kills_of_a_jobmanager_that_is_starting(
        self, status: int
    ) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        for number in range(10 * FAILED_STARTS_MAX):
            jobmanagers.started[number][0](status)
        jobmanagers.started[-1][1]({"address": "last"})
        assert cluster.address() == "last"
        cluster.close()

    def test_local_cluster_fails_if_each_starting_jobmanager_is_killed_for_two_minutes(
        self,
    ) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        while clock.now < REFUSED_S_MAX:
            jobmanagers.started[-1][0](-9)
        jobmanagers.started[-1][0](-9)
        with pytest.raises(ResourceExhaustedError, match="was killed by SIGKILL at its start"):
            cluster.address()
        cluster.close()

    def test_local_cluster_fails_if_each_jobmanager_crashes_at_its_start(self) -> None:
        jobmanagers = Jobmanagers()
        cluster = LocalCluster(jobmanagers, Lines(), VirtualClock(), SystemThreads())
        for number in range(FAILED_STARTS_MAX):
            jobmanagers.started[number][0](-11)
        with pytest.raises(ExternalError, match="ends at its start"):
            cluster.address()
        cluster.close()

    def test_local_cluster_fails_if_the_jobmanager_is_not_ready_in_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tidegate.controlplane.client.local.START_TIMEOUT_S", 0.01)
        cluster = LocalCluster(Jobmanagers(), Lines(), VirtualClock(), SystemThreads())
        with pytest.raises(RpcError, match=r"not up after 0\.01 s: see its log jobmanager\.log"):
            cluster.address()
        cluster.close()

    def test_local_cluster_fails_if_no_jobmanager_process_can_be_spawned(self) -> None:
        jobmanagers = Jobmanagers()
        jobmanagers.refuses = FAILED_STARTS_MAX
        cluster = LocalCluster(jobmanagers, Lines(), VirtualClock(), SystemThreads())
        with pytest.raises(ExternalError):
            cluster.address()
        cluster.close()

    def test_local_cluster_retries_while_the_operating_system_refuses_the_jobmanager(self) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        exited, ready = jobmanagers.started[0]
        ready({"address": "one"})
        jobmanagers.refusal = ResourceExhaustedError("no process id")
        jobmanagers.refuses = 10 * FAILED_STARTS_MAX
        exited(-9)
        jobmanagers.started[1][0](NO_RESOURCES)  # it started, and got no memory
        jobmanagers.started[2][1]({"address": "two"})
        assert cluster.address() == "two"
        cluster.close()

    def test_local_cluster_fails_if_the_operating_system_refuses_for_two_minutes(self) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        jobmanagers.refusal = ResourceExhaustedError("no process id")
        jobmanagers.refuses = 100_000
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        assert REFUSED_S_MAX <= clock.now < REFUSED_S_MAX + 2
        with pytest.raises(ResourceExhaustedError, match="for 120 s: no process id"):
            cluster.address()
        cluster.close()

    def test_answer_timeout_of_a_local_cluster_exceeds_the_limit_of_refused_starts(self) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        assert cluster.client()._answer_timeout_s > 2 * REFUSED_S_MAX
        cluster.close()

    def test_local_cluster_error_does_not_blame_resources_if_a_start_fails_otherwise(self) -> None:
        jobmanagers = Jobmanagers()
        cluster = LocalCluster(jobmanagers, Lines(), VirtualClock(), SystemThreads())
        jobmanagers.started[0][0](NO_RESOURCES)
        jobmanagers.refuses = FAILED_STARTS_MAX
        jobmanagers.started[1][0](1)
        with pytest.raises(ExternalError, match=r"ends at its start: see its log jobmanager\.log"):
            cluster.address()
        cluster.close()

    def test_local_cluster_retries_if_the_jobmanager_cannot_be_spawned_for_a_moment(self) -> None:
        jobmanagers, clock = Jobmanagers(), VirtualClock()
        cluster = LocalCluster(jobmanagers, Lines(), clock, SystemThreads())
        exited, ready = jobmanagers.started[0]
        ready({"address": "one"})
        jobmanagers.refuses = FAILED_STARTS_MAX - 1
        exited(-9)
        jobmanagers.started[1][1]({"address": "two"})
        assert cluster.address() == "two"
        assert clock.now > 1
        cluster.close()
