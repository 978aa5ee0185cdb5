"""The Dispatcher's machine: every rule by itself, then all under an adversary."""

import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controlplane.jobmanager.dispatching import (
    EPOCH,
    HEARTBEAT_TIMEOUT_MS,
    A,
    Shell,
    submission,
)
from tidegate.controlplane.jobmanager import dispatcher_events as j
from tidegate.controlplane.jobmanager.dispatcher import (
    ENDED_MAX,
    EXIT_TIMEOUT_MS,
    START_MS_MAX,
)
from tidegate.controlplane.jobmanager.job_record import Phase
from tidegate.errors import StorageError
from tidegate.ids import JobName, LeaderEpoch
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import (
    Acknowledge,
    Failed,
    GetJob,
    JobMasterAccepted,
    ListJobs,
    Refused,
    StopJob,
    SubmitJob,
)
from tidegate.protocol.reports import JobList, JobReport


class TestSubmit:
    def test_submit_is_acknowledged_once_stored_with_its_cluster_name(self, shell: Shell) -> None:
        assert shell.ask(SubmitJob(submission=submission())) is None
        assert shell.instructions == [j.StoreSubmission(submission=submission(cluster="here"))]
        shell.event(j.SubmissionStored(job=A))
        assert shell.replies == {1: Acknowledge()}
        assert shell.start_number() == 1

    def test_repeated_submit_with_the_same_id_is_acknowledged_without_a_second_start(
        self, shell: Shell
    ) -> None:
        again = SubmitJob(submission=msgspec.structs.replace(submission(), id="x"))
        assert shell.ask(again) is None
        assert shell.ask(again) is None
        assert len(shell.instructions) == 1
        shell.event(j.SubmissionStored(job=A))
        assert shell.replies == {1: Acknowledge(), 2: Acknowledge()}
        assert shell.ask(again) == Acknowledge()
        shell.started(100)
        assert shell.ask(again) == Acknowledge()
        shell.report(100, "FINISHED")
        shell.event(j.ResultStored(job=A))
        assert shell.ask(again) == Acknowledge()
        assert shell.start_number() == 1

    def test_submit_is_refused_while_a_job_of_that_name_has_not_ended(self, shell: Shell) -> None:
        shell.ask(SubmitJob(submission=submission()))
        for move in (
            lambda: shell.event(j.SubmissionStored(job=A)),
            lambda: shell.started(100),
            shell.exits,
        ):
            assert isinstance(shell.ask(SubmitJob(submission=submission())), Refused)
            move()
        refused = shell.ask(SubmitJob(submission=submission()))
        assert isinstance(refused, Refused)
        assert "tidegate stop a" in refused.reason

    def test_submit_that_cannot_be_stored_leaves_no_job(self, shell: Shell) -> None:
        shell.ask(SubmitJob(submission=submission()))
        error = ErrorReport.of(StorageError("full"))
        shell.event(j.SubmissionNotStored(job=A, error=error))
        assert shell.replies[1] == Failed(error=error)
        assert isinstance(shell.ask(GetJob(job=A)), Refused)
        shell.ask(SubmitJob(submission=submission()))
        assert shell.machine.phase(A) is Phase.STORING

    def test_submit_after_the_job_ended_kills_its_old_jobmaster_and_starts_a_new_one(
        self, running: Shell
    ) -> None:
        running.report(100, "FINISHED")
        running.event(j.ResultStored(job=A))
        done = running.event(
            j.RequestReceived(request_id=99, message=SubmitJob(submission=submission()))
        )
        assert [type(i) for i in done] == [j.KillJobMaster, j.ReleaseJobSlots, j.StoreSubmission]
        running.event(j.JobMasterExited(job=A, launch_id=1, status=-9))  # of the earlier run
        running.event(j.SubmissionStored(job=A))
        running.started(101)
        assert running.machine.phase(A) is Phase.RUNNING


class TestJobMaster:
    def test_dead_jobmaster_is_restarted_and_its_slots_are_released(self, running: Shell) -> None:
        running.report(100, attempt=4)
        done = running.exits()
        assert done == [j.ReleaseJobSlots(job=A), j.ScheduleStart(job=A, launch_id=1, after_ms=0)]
        running.event(j.StartDelayElapsed(job=A, launch_id=1))
        running.started(101)
        running.report(101, attempt=5)
        shown = running.shown()
        assert (shown.restarts, shown.attempt, shown.jobmaster_pid) == (1, 5, 101)
        assert "was killed by SIGKILL" in shown.failed_attempts[0].error.message
        assert shown.failed_attempts[0].attempt == 4

    def test_restarted_jobmaster_continues_the_counters_of_the_dead_one(
        self, running: Shell
    ) -> None:
        running.report(100, attempt=4, records_in=70, checkpoints_completed=3)
        running.exits()
        between = running.shown()
        assert (between.records_in, between.checkpoints_completed) == (70, 3)
        running.event(j.StartDelayElapsed(job=A, launch_id=1))
        running.started(101)
        running.report(101, attempt=5, records_in=5, checkpoints_completed=1)
        shown = running.shown()
        assert (shown.records_in, shown.checkpoints_completed) == (75, 4)
        running.report(101, "FINISHED", attempt=5, records_in=6, checkpoints_completed=2)
        shown = running.shown()
        assert (shown.records_in, shown.checkpoints_completed, shown.restarts) == (76, 5, 1)

    def test_replaced_jobmaster_is_refused(self, running: Shell) -> None:
        running.exits()
        running.event(j.StartDelayElapsed(job=A, launch_id=1))
        gone = Refused(reason="process 100 is not the JobMaster of a")
        assert running.register(100) == gone
        running.started(101)
        assert running.report(100, "FAILED") == gone
        assert running.machine.phase(A) is Phase.RUNNING
        assert running.event(j.JobMasterExited(job=A, launch_id=1, status=0)) == []

    def test_jobmaster_of_another_leader_epoch_is_refused(self, running: Shell) -> None:
        refused = running.register(100, LeaderEpoch(EPOCH - 1))
        assert isinstance(refused, Refused)
        assert f"leader epoch {EPOCH - 1} is not {EPOCH}" in refused.reason

    def test_jobmaster_of_an_ended_job_is_refused(self, running: Shell) -> None:
        running.report(100, "FINISHED")
        assert running.register(100) == Refused(reason="job a has ended")

    def test_dispatcher_refuses_a_message_it_does_not_handle(self, running: Shell) -> None:
        assert running.ask(Acknowledge()) == Refused(reason="the Dispatcher takes no Acknowledge")

    def test_jobmaster_may_register_twice(self, running: Shell) -> None:
        assert isinstance(running.register(100), JobMasterAccepted)

    def test_silent_jobmaster_is_killed_after_the_heartbeat_timeout(self, running: Shell) -> None:
        running.now_ms = HEARTBEAT_TIMEOUT_MS
        assert running.event(j.DispatcherTick()) == []
        running.now_ms += 1
        (kill,) = running.event(j.DispatcherTick())
        assert isinstance(kill, j.KillJobMaster)
        assert kill.pid == 100

    def test_jobmaster_that_imports_the_job_is_killed_only_after_the_start_timeout(
        self, running: Shell
    ) -> None:
        running.exits()
        running.event(j.StartDelayElapsed(job=A, launch_id=1))
        running.imports(101)
        running.now_ms = START_MS_MAX
        assert running.event(j.DispatcherTick()) == []
        running.now_ms += 1
        (kill,) = running.event(j.DispatcherTick())
        assert isinstance(kill, j.KillJobMaster)
        assert kill.pid == 101

    def test_jobmaster_that_has_reported_is_killed_after_the_heartbeat_timeout(
        self, shell: Shell
    ) -> None:
        shell.ask(SubmitJob(submission=submission()))
        shell.event(j.SubmissionStored(job=A))
        shell.imports(100)
        shell.now_ms = START_MS_MAX
        shell.report(100)
        shell.now_ms += HEARTBEAT_TIMEOUT_MS + 1
        assert isinstance(shell.event(j.DispatcherTick())[0], j.KillJobMaster)

    def test_jobmaster_that_does_not_register_is_killed(self, shell: Shell) -> None:
        shell.ask(SubmitJob(submission=submission()))
        shell.event(j.SubmissionStored(job=A))
        shell.event(j.JobMasterStarted(job=A, launch_id=1, pid=100))
        shell.now_ms = START_MS_MAX + 1
        assert isinstance(shell.event(j.DispatcherTick())[0], j.KillJobMaster)

    def test_start_timeout_of_a_jobmaster_begins_when_its_process_starts(
        self, shell: Shell
    ) -> None:
        shell.ask(SubmitJob(submission=submission()))
        shell.event(j.SubmissionStored(job=A))
        shell.now_ms = 2 * START_MS_MAX
        assert shell.event(j.DispatcherTick()) == []
        shell.event(j.JobMasterStarted(job=A, launch_id=1, pid=100))
        shell.now_ms += START_MS_MAX
        assert shell.event(j.DispatcherTick()) == []


class TestEnd:
    @pytest.mark.parametrize("state", ["FINISHED", "FAILED", "CANCELED"])
    def test_end_is_acknowledged_once_its_result_is_stored_and_no_jobmaster_is_started(
        self, running: Shell, state: str
    ) -> None:
        assert running.report(100, state) is None
        assert running.report(100, state) is None  # repeated by an impatient JobMaster
        stored = running.last(j.StoreResult)
        assert isinstance(stored, j.StoreResult)
        assert (stored.report.state, stored.fenced) == (state, False)
        running.event(j.ResultStored(job=A))
        assert list(running.replies.values())[-2:] == [Acknowledge(), Acknowledge()]
        assert running.exits(0) == [j.ReleaseJobSlots(job=A)]
        assert running.shown().state == state

    def test_end_of_a_fenced_job_is_stored_as_fenced(self, running: Shell) -> None:
        running.report(100, "DEPOSED")
        stored = running.last(j.StoreResult)
        assert isinstance(stored, j.StoreResult)
        assert stored.fenced

    def test_fenced_state_is_shown_only_after_its_storing_succeeded(self, running: Shell) -> None:
        running.report(100, "DEPOSED")
        assert running.shown().state == "RECOVERING"
        running.event(j.ResultStored(job=A))
        assert running.shown().state == "DEPOSED"

    @pytest.mark.parametrize("stopped_first", [False, True])
    @pytest.mark.parametrize("leaves_first", [False, True])
    def test_fenced_job_is_restarted_if_this_cluster_still_owns_it(
        self, running: Shell, *, leaves_first: bool, stopped_first: bool
    ) -> None:
        if stopped_first:
            running.ask(StopJob(job=A, final_checkpoint=True))
        running.report(100, "DEPOSED")
        if not stopped_first:
            assert running.ask(StopJob(job=A, final_checkpoint=True)) == Acknowledge()
        if leaves_first:
            assert running.exits(0) == [j.ReleaseJobSlots(job=A)]
        *_, answer, wait = done = running.event(j.JobStillOwned(job=A))
        assert isinstance(wait, j.ScheduleStart)
        if leaves_first:
            assert done == [answer, wait]
        else:
            assert [type(each) for each in done[1:3]] == [j.KillJobMaster, j.ReleaseJobSlots]
            assert running.exits(0) == [], "of a start that is over"
        running.event(j.StartDelayElapsed(job=A, launch_id=wait.launch_id))
        running.started(101)
        assert running.machine.phase(A) is Phase.RUNNING
        (told,) = running.event(j.DispatcherTick())
        assert isinstance(told, j.ForwardStop)
        assert (told.launch_id, told.address) == (running.start_number(), "master 101")
        shown = running.shown()
        assert shown.restarts == 1
        assert shown.failed_attempts[-1].error is not None
        assert shown.failed_attempts[-1].error.kind == "DeposedError"

    def test_storing_the_result_is_retried_until_it_succeeds(self, running: Shell) -> None:
        running.report(100, "FINISHED")
        running.exits(0)
        assert running.event(j.DispatcherTick()) == []  # still under way
        running.event(j.ResultNotStored(job=A))
        (again,) = running.event(j.DispatcherTick())
        assert isinstance(again, j.StoreResult)

    def test_jobmaster_that_does_not_exit_after_the_end_is_killed(self, running: Shell) -> None:
        running.report(100, "FINISHED")
        running.event(j.ResultStored(job=A))
        running.now_ms = EXIT_TIMEOUT_MS + 1
        assert isinstance(running.event(j.DispatcherTick())[0], j.KillJobMaster)

    def test_job_list_is_limited_to_the_newest_ended_jobs(self, shell: Shell) -> None:
        ended = [
            (
                submission(JobName(f"j{n}"), "here"),
                JobReport(job=JobName(f"j{n}"), state=JobState.FAILED),
            )
            for n in range(ENDED_MAX + 20)
        ]
        shell.machine.recover(ended, 0)
        shell.machine.validate()
        shell.ask(SubmitJob(submission=submission()))
        shell.event(j.SubmissionStored(job=A))
        shell.started(100)
        shell.report(100, "FINISHED")
        shell.event(j.ResultStored(job=A))
        listed = shell.ask(ListJobs())
        assert isinstance(listed, JobList)
        assert len(listed.jobs) == ENDED_MAX
        assert listed.jobs[-1].job == A


class TestStop:
    def test_stop_is_forwarded_to_the_jobmaster(self, running: Shell) -> None:
        assert running.ask(StopJob(job=A)) == Acknowledge()
        assert running.last(j.ForwardStop) == forward(1, 100)

    def test_stop_is_forwarded_to_each_restarted_jobmaster_and_retried_if_not_taken(
        self, running: Shell
    ) -> None:
        running.ask(StopJob(job=A))
        running.exits()
        running.event(j.StartDelayElapsed(job=A, launch_id=1))
        running.started(101)
        assert running.event(j.DispatcherTick()) == [forward(2, 101)]
        assert running.event(j.DispatcherTick()) == []
        running.event(j.StopNotAccepted(job=A, launch_id=2))  # it was only starting
        assert running.event(j.DispatcherTick()) == [forward(2, 101)]

    def test_stop_before_the_first_start_is_forwarded_once_the_jobmaster_runs(
        self, shell: Shell
    ) -> None:
        shell.ask(SubmitJob(submission=submission()))
        assert shell.ask(StopJob(job=A)) == Acknowledge()
        shell.event(j.SubmissionStored(job=A))
        shell.started(100)
        assert shell.event(j.DispatcherTick()) == [forward(1, 100)]

    def test_stop_after_a_cancel_remains_a_cancel(self, running: Shell) -> None:
        running.ask(StopJob(job=A, final_checkpoint=False))
        running.ask(StopJob(job=A))
        assert running.last(j.ForwardStop) == forward(1, 100, final_checkpoint=False)

    def test_stop_of_an_unknown_or_ended_job_is_refused(self, running: Shell) -> None:
        unknown = running.ask(StopJob(job=JobName("other")))
        assert isinstance(unknown, Refused)
        assert "knows no job named other: tidegate list shows" in unknown.reason
        running.report(100, "FINISHED")
        ended = Refused(reason="Job a has ended already (FINISHED).")
        assert running.ask(StopJob(job=A)) == ended


class TestRecovery:
    def test_recovery_starts_unfinished_jobs_and_lists_ended_jobs(self) -> None:
        shell = Shell()
        b = JobName("b")
        ended = JobReport(job=b, state=JobState.FINISHED, attempt=9)
        jobs = [(submission(cluster="here"), None), (submission(b, "here"), ended)]
        (start,) = shell.machine.recover(jobs, 0)
        shell.machine.validate()
        assert start == j.StartJobMaster(job=A, launch_id=1)
        assert shell.ask(GetJob(job=b)) == ended
        assert isinstance(shell.ask(SubmitJob(submission=submission())), Refused)
        assert shell.ask(SubmitJob(submission=submission(b))) is None


def forward(start: int, pid: int, *, final_checkpoint: bool = True) -> j.ForwardStop:
    message = StopJob(job=A, final_checkpoint=final_checkpoint)
    return j.ForwardStop(job=A, launch_id=start, address=f"master {pid}", message=message)


class Adversary:
    """Carries instructions out well, badly or late, and lets anything happen in between."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shell = Shell()
        self.pids: dict[int, int] = {}
        self.alive: set[int] = set()

    def act(self) -> None:
        shell, rng = self.shell, self.rng
        shell.now_ms += rng.randrange(400)
        start = rng.choice([*self.pids, 0])
        pid = self.pids.get(start, 5)
        ends = ["FINISHED", "FAILED", "CANCELED", "DEPOSED"]
        acts: list[Callable[[], object]] = [
            lambda: shell.ask(SubmitJob(submission=submission())),
            lambda: shell.register(pid),
            lambda: shell.report(pid),
            lambda: shell.report(pid, rng.choice(ends)),
            lambda: self.exit(start),
            lambda: shell.ask(StopJob(job=A, final_checkpoint=rng.random() < 0.5)),
            lambda: shell.event(j.DispatcherTick()),
            self.follow_next,
        ]
        rng.choice(acts)()

    def follow_next(self) -> None:
        if self.shell.instructions:
            self.follow(self.shell.instructions.pop(0), 0.7)

    def drain(self) -> None:
        """All that was instructed is done, and goes well."""
        waiting = self.shell.instructions
        while waiting:
            self.follow(waiting.pop(self.rng.randrange(len(waiting))), 1.0)

    def follow(self, instruction: j.Instruction, well: float) -> None:
        shell, good = self.shell, self.rng.random() < well
        match instruction:
            case j.StoreSubmission() if good:
                shell.event(j.SubmissionStored(job=A))
            case j.StoreSubmission():
                error = ErrorReport.of(StorageError(""))
                shell.event(j.SubmissionNotStored(job=A, error=error))
            case j.StoreResult(fenced=True) if good and self.rng.random() < 0.5:
                shell.event(j.JobStillOwned(job=A))
            case j.StoreResult():
                shell.event(j.ResultStored(job=A) if good else j.ResultNotStored(job=A))
            case j.StartJobMaster(launch_id=start):
                self.start(start, good=good)
            case j.ScheduleStart(launch_id=start):
                shell.event(j.StartDelayElapsed(job=A, launch_id=start))
            case j.KillJobMaster(pid=pid):
                self.exit(pid - 1000)
            case j.ForwardStop(launch_id=start) if not good:
                shell.event(j.StopNotAccepted(job=A, launch_id=start))
            case _:
                pass

    def start(self, start: int, *, good: bool) -> None:
        if good:
            self.pids[start] = 1000 + start
            self.alive.add(start)
            self.shell.event(j.JobMasterStarted(job=A, launch_id=start, pid=self.pids[start]))
        else:
            self.shell.event(j.JobMasterExited(job=A, launch_id=start, status=None, reason="x"))

    def exit(self, start: int) -> None:
        if start in self.alive:
            self.alive.remove(start)
            self.shell.event(j.JobMasterExited(job=A, launch_id=start, status=-9))


@given(st.integers(min_value=0))
def test_no_order_of_events_breaks_an_invariant(seed: int) -> None:
    adversary = Adversary(seed)
    shell = adversary.shell
    for _ in range(60):
        adversary.act()
    adversary.drain()
    for _ in range(3):
        shell.event(j.DispatcherTick())
        adversary.drain()
    assert set(shell.replies) == set(range(1, shell.request_ids + 1)), "somebody waits for ever"
    if shell.machine.live():
        assert adversary.alive, "a live job without a process"
        shell.register(max(adversary.pids.values()))
        assert shell.machine.phase(A) is Phase.RUNNING
