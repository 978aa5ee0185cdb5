"""JobMasters that do not come up: which starts count, and what becomes of the job."""

from __future__ import annotations

import msgspec
import pytest

from tests.controlplane.jobmanager.dispatching import EPOCH, A, Shell, submission
from tests.controlplane.parts import registration
from tidegate.config import JobSettings
from tidegate.controlplane.jobmanager import dispatcher_events as j
from tidegate.controlplane.jobmanager.backoff import LONGEST_MS, RESET_AFTER_MS
from tidegate.controlplane.jobmanager.dispatcher import SHOW_START_WAIT_AFTER_MS, START_MS_MAX
from tidegate.controlplane.jobmanager.failed_starts import FAILED_STARTS_MAX, KILLED_STARTS_MAX
from tidegate.controlplane.jobmanager.job_record import CANCEL_WAIT_SHARE, Phase
from tidegate.controlplane.jobmaster.events import STORAGE_HANGS
from tidegate.ports.processes import NO_RESOURCES, REFUSED_START_PAUSE_MS
from tidegate.protocol.job_state import ENDED, JobState
from tidegate.protocol.messages import Acknowledge, Refused, StopJob, SubmitJob

GRACE_MS = JobSettings().stop_grace_period


def test_job_fails_without_closing_transactions_if_no_jobmaster_ever_registers(
    shell: Shell,
) -> None:
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    for _ in range(2 * FAILED_STARTS_MAX):
        assert shell.machine.phase(A) is not Phase.ENDING
        shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
        shell.event(j.JobMasterStarted(job=A, launch_id=shell.start_number(), pid=9))
        shell.exits(1)
        shell.machine.validate()
    stored = shell.last(j.StoreResult)
    assert isinstance(stored, j.StoreResult)
    assert stored.report.state == "FAILED"
    assert stored.report.error is not None
    assert stored.report.error.kind == "StartFailedError"
    assert "transactions may stay open" in stored.report.error.message


def test_close_only_jobmaster_starts_after_repeated_deaths_during_import(
    running: Shell,
) -> None:
    for pid in range(101, 101 + FAILED_STARTS_MAX):
        running.exits(-11)
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        assert running.imports(pid).close_only is None, "the first had reported"
    running.exits(-11)
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    failure = running.imports(200).close_only
    assert failure is not None
    assert "was killed by SIGSEGV" in failure.message
    assert "transactions may stay open" not in failure.message
    running.report(200, "CLOSING")
    assert running.machine.phase(A) is Phase.RUNNING
    running.exits(-9)
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    assert running.imports(201).close_only == failure, "the next one goes on with that"
    running.report(201, "FAILED")
    stored = running.last(j.StoreResult)
    assert isinstance(stored, j.StoreResult)
    assert stored.report.state == "FAILED"


@pytest.mark.parametrize("status", [-9, -15])
def test_job_does_not_fail_if_something_kills_its_jobmasters_during_import(
    shell: Shell, status: int
) -> None:
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    for pid in range(101, 101 + KILLED_STARTS_MAX):
        shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
        assert shell.imports(pid).close_only is None
        if pid < 100 + KILLED_STARTS_MAX:
            shell.exits(status)
    shell.report(100 + KILLED_STARTS_MAX)
    assert shell.shown().state == "RUNNING"


def test_kills_of_starting_jobmasters_have_no_limit_after_the_job_has_run(running: Shell) -> None:
    for pid in range(101, 101 + 3 * KILLED_STARTS_MAX):
        running.exits(-9)
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        assert running.imports(pid).close_only is None
    waits = running.exits(-9)[-1]
    assert isinstance(waits, j.ScheduleStart)
    assert waits.after_ms == LONGEST_MS


@pytest.mark.parametrize(
    ("status", "words"), [(-9, "was killed by SIGKILL. The system"), (-15, "by SIGTERM. Find out")]
)
def test_job_fails_if_something_kills_each_jobmaster_before_it_has_ever_run(
    shell: Shell, status: int, words: str
) -> None:
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    pauses_ms = []
    for pid in range(101, 101 + KILLED_STARTS_MAX):
        shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
        assert shell.imports(pid).close_only is None
        shell.now_ms += RESET_AFTER_MS  # a long import is no work
        waits = shell.exits(status)[-1]
        assert isinstance(waits, j.ScheduleStart)
        pauses_ms.append(waits.after_ms)
    assert pauses_ms == [0, 1_000, 2_000, 4_000, 8_000, 16_000, *[30_000] * 4]
    shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
    failure = shell.imports(200).close_only
    assert failure is not None
    assert failure.kind == "StartFailedError"
    assert "ended 10 times in a row before it reported anything" in failure.message
    assert words in failure.message


def test_status_says_why_a_jobmaster_is_started_again_while_it_imports(shell: Shell) -> None:
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    shell.imports(101)
    shell.exits(-9)
    shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
    shell.imports(102)
    shell.report(102, "RECOVERING", attempt=0, planned=False)
    error = shell.shown().error
    assert error is not None
    assert "was killed by SIGKILL. The system kills a process in this way when" in error.message
    shell.report(102)
    assert shell.shown().error is None


def test_job_fails_if_each_of_its_jobmasters_hangs_and_is_killed_for_that(shell: Shell) -> None:
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    for pid in range(101, 101 + FAILED_STARTS_MAX):
        shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
        assert shell.imports(pid).close_only is None
        shell.now_ms += START_MS_MAX + 1
        assert isinstance(shell.event(j.DispatcherTick())[0], j.KillJobMaster)
        shell.exits(-9)
    shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
    failure = shell.imports(200).close_only
    assert failure is not None
    assert "was killed by SIGKILL" in failure.message


def test_kill_by_something_else_does_not_count_as_a_hang_after_one_jobmaster_has_hung(
    shell: Shell,
) -> None:
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
    shell.imports(101)
    shell.now_ms += START_MS_MAX + 1
    assert isinstance(shell.event(j.DispatcherTick())[0], j.KillJobMaster)
    shell.exits(-9)
    for pid in range(102, 102 + FAILED_STARTS_MAX):
        shell.event(j.StartDelayElapsed(job=A, launch_id=shell.start_number()))
        assert shell.imports(pid).close_only is None
        shell.exits(-9)
    assert shell.machine.phase(A) is Phase.WAITING


@pytest.mark.parametrize("status", [None, NO_RESOURCES])
def test_jobmaster_start_is_retried_while_the_operating_system_refuses_resources(
    running: Shell, status: int | None
) -> None:
    running.exits(-9)
    for _ in range(2 * FAILED_STARTS_MAX):
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        running.now_ms += 1_000
        (_, waits) = running.event(
            j.JobMasterExited(
                job=A,
                launch_id=running.start_number(),
                status=status,
                reason="no process id",
                refused=status is None,
            )
        )
        assert isinstance(waits, j.ScheduleStart)
        assert waits.after_ms == REFUSED_START_PAUSE_MS
        running.machine.validate()
    shown = running.shown()
    assert "refuses the JobMaster of a a resource: no process id" in shown.waiting_for
    assert (shown.waiting_since_ms, shown.restarts) == (1_001_000, 1), "the kill was one restart"
    assert shown.start_refused == f"{shown.waiting_for.split(';')[0]}."
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    running.imports(200)
    shown = running.shown()
    assert (shown.waiting_for, shown.waiting_since_ms, shown.start_refused) == ("", 0, "")
    assert shown.state == "RECOVERING", "of the rest the last word holds until it reports"


def test_report_says_that_storage_does_not_confirm_leadership_before_a_start(shell: Shell) -> None:
    """A session cluster starts no JobMaster before the storage confirms who leads."""
    shell.ask(SubmitJob(submission=submission()))
    shell.event(j.SubmissionStored(job=A))
    shell.now_ms += SHOW_START_WAIT_AFTER_MS
    shell.event(j.DispatcherTick())
    assert shell.shown().start_refused == "", "a start may take a moment"
    shell.now_ms += 1
    assert shell.event(j.DispatcherTick()) == []
    shown = shell.shown()
    assert "does not confirm that this JobManager still leads" in shown.start_refused
    assert shown.waiting_since_ms == 1_000_000 + shell.now_ms
    shell.now_ms += 1_000
    shell.event(j.DispatcherTick())
    assert shell.shown().waiting_since_ms == shown.waiting_since_ms
    shell.event(j.JobMasterStarted(job=A, launch_id=shell.start_number(), pid=101))
    shell.now_ms += SHOW_START_WAIT_AFTER_MS + 1
    assert shell.event(j.DispatcherTick()) == [], "it imports"
    shell.register(101)
    assert shell.shown().start_refused == ""


def test_cancel_is_forwarded_to_a_jobmaster_whose_start_was_refused_before(running: Shell) -> None:
    running.exits(-9)
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    refused = j.JobMasterExited(
        job=A, launch_id=running.start_number(), status=None, reason="no process id", refused=True
    )
    running.event(refused)
    cancel = StopJob(job=A, final_checkpoint=False)
    assert running.ask(cancel) == Acknowledge()
    assert running.shown().start_refused, "whoever asked can see that it takes longer"
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    running.started(200)
    running.event(j.DispatcherTick())
    told = running.last(j.ForwardStop)
    assert isinstance(told, j.ForwardStop)
    assert (told.message, told.address) == (cancel, "master 200")


@pytest.mark.parametrize("registered", [False, True])
def test_cancel_ends_a_job_whose_jobmaster_does_not_start_in_time(
    running: Shell, *, registered: bool
) -> None:
    running.exits(STORAGE_HANGS)
    if registered:  # the process exists, and has not reached the JobManager
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        running.event(j.JobMasterStarted(job=A, launch_id=running.start_number(), pid=101))
    running.ask(StopJob(job=A))
    running.now_ms += GRACE_MS
    running.event(j.DispatcherTick())
    assert running.shown().state not in ENDED, "a stop waits"
    assert running.ask(StopJob(job=A, final_checkpoint=False)) == Acknowledge()
    running.now_ms += int(CANCEL_WAIT_SHARE * GRACE_MS) - 1
    running.event(j.DispatcherTick())
    assert running.shown().state not in ENDED
    running.now_ms += 1
    done = running.event(j.DispatcherTick())
    killed = [each.pid for each in done if isinstance(each, j.KillJobMaster)]
    assert killed == ([101] if registered else [])
    shown = running.shown()
    assert shown.state is JobState.FAILED
    assert shown.error is not None
    assert "The cancel did not wait longer within job.stop_grace_period" in shown.error.message
    assert "a call to the checkpoint storage did not return" in shown.error.message
    assert "The next run of the job settles them" in shown.error.message
    assert isinstance(running.register(101), Refused), "it must not claim"
    running.event(j.ResultStored(job=A))
    assert running.machine.phase(A) is Phase.ENDED


def test_stop_tells_each_jobmaster_since_when_it_waits(running: Shell) -> None:
    running.ask(StopJob(job=A))
    running.now_ms += 400
    running.ask(StopJob(job=A))
    told = running.last(j.ForwardStop)
    assert isinstance(told, j.ForwardStop)
    assert told.message.waited_ms == 400
    running.ask(StopJob(job=A, final_checkpoint=False))
    running.now_ms += 300
    running.exits()
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    running.started(101)
    running.event(j.DispatcherTick())
    told = running.last(j.ForwardStop)
    assert isinstance(told, j.ForwardStop)
    assert told.message == StopJob(job=A, final_checkpoint=False, waited_ms=300)


def test_failed_start_count_resets_after_a_jobmaster_report(running: Shell) -> None:
    for pid in range(101, 101 + 3 * FAILED_STARTS_MAX):
        running.exits(1)
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        running.imports(pid)
        if pid % FAILED_STARTS_MAX == 0:
            running.report(pid)
    assert running.machine.phase(A) is Phase.RUNNING


def test_jobmaster_of_another_version_is_retried_and_its_version_is_shown(running: Shell) -> None:
    """The package was upgraded under a JobManager that runs."""
    running.exits(-9)
    for _ in range(2 * FAILED_STARTS_MAX):
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        running.event(j.JobMasterStarted(job=A, launch_id=running.start_number(), pid=300))
        newer = msgspec.structs.replace(
            registration(A, EPOCH, "master 300", 300), tidegate_version="999.0"
        )
        assert isinstance(running.ask(newer), Refused)
        waits = running.exits(1)[-1]
        assert isinstance(waits, j.ScheduleStart)
        running.machine.validate()
    shown = running.shown()
    assert "999.0" in shown.waiting_for
    assert "Restart the JobManager" in shown.start_refused
    assert shown.restarts == 1, "the kill was one restart"


def test_jobmaster_exit_because_of_hanging_storage_is_not_a_failed_start(running: Shell) -> None:
    for pid in range(101, 101 + 2 * FAILED_STARTS_MAX):
        running.exits(STORAGE_HANGS)
        running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
        assert running.imports(pid).close_only is None
        running.report(pid, "RECOVERING", attempt=0, planned=False)


def test_jobmaster_that_plans_may_be_silent_until_the_start_timeout(running: Shell) -> None:
    running.exits(-9)
    running.event(j.StartDelayElapsed(job=A, launch_id=running.start_number()))
    running.imports(101)
    running.report(101, "RECOVERING", attempt=0, planned=False)
    running.now_ms += START_MS_MAX
    assert running.event(j.DispatcherTick()) == []
    running.report(101, "RUNNING")
    running.report(101, "RECOVERING", attempt=0, planned=False)  # and plans once more
    running.now_ms += START_MS_MAX
    assert running.event(j.DispatcherTick()) == []
    running.now_ms += 1
    assert isinstance(running.event(j.DispatcherTick())[0], j.KillJobMaster)
