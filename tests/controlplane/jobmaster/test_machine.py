"""The life of a job: the paths a person would tell, and random events that must keep its
invariants."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.controlplane.jobmaster.events import (
    AcquireSlots,
    AttemptFailed,
    Claimed,
    Close,
    CloseFailed,
    DeploySlots,
    EndAttempt,
    EndInput,
    Event,
    ExitProcess,
    FinalCheckpointCommitted,
    JobClosed,
    JobRecovered,
    ProcessStarted,
    Recover,
    RecoveryFailed,
    RestartDelayElapsed,
    ScheduleRestart,
    SlotDisappeared,
    SlotInputEnded,
    SlotReady,
    SlotRegistered,
    SlotRequestTimedOut,
    StartAttempt,
    StopEnd,
    StopGraceElapsed,
    StopRequested,
    StopTimedOut,
    TakeFinalCheckpoint,
)
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.errors import (
    DataLossError,
    ExternalError,
    FencedError,
    InternalError,
    JobClosedError,
    KafkaUnavailableError,
    PipelineError,
    RefusedError,
    StartFailedError,
    StorageError,
    TidegateError,
    UserCodeError,
)
from tidegate.ids import Attempt, SlotId, SubtaskId, SubtaskIndex, TaskManagerId, VertexId
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import ENDED, JobState

ONE, TWO = Attempt(1), Attempt(2)
SUBTASKS = frozenset(SubtaskId(VertexId("orders"), SubtaskIndex(i)) for i in range(2))


STOPPED_WITHOUT = Close(outcome=JobState.FINISHED, stopped=StopEnd.WITHOUT_CHECKPOINT)


def slot(ordinal: int) -> SlotId:
    return SlotId(TaskManagerId("tm-1"), ordinal)


def machine(delay: float | None = 0.5) -> JobMachine:
    return JobMachine(slots=2, subtasks=SUBTASKS, next_delay=lambda: delay)


def started(attempt: Attempt) -> list[Event]:
    """The events of an attempt until it runs."""
    return [
        Claimed(attempt=attempt),
        JobRecovered(attempt=attempt),
        *(SlotRegistered(attempt=attempt, ordinal=o, slot=slot(o)) for o in range(2)),
        *(SlotReady(attempt=attempt, ordinal=o) for o in range(2)),
    ]


UP_TO_RUNNING: list[Event] = [ProcessStarted(), *started(ONE)]


def running() -> JobMachine:
    job = machine()
    for event in UP_TO_RUNNING:
        job.handle(event)
    assert job.state is JobState.RUNNING
    return job


def before_deployment(state: JobState) -> JobMachine:
    """In attempt 2, which has one slot."""
    job = running()
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("x")))
    job.handle(Claimed(attempt=TWO))
    job.handle(SlotRegistered(attempt=TWO, ordinal=0, slot=slot(0), allocation_id=3))
    if state is not JobState.INITIALIZING:
        job.handle(JobRecovered(attempt=TWO))
    if state is JobState.WAITING_FOR_SLOTS:
        job.handle(RestartDelayElapsed(restart=1))
    assert job.state is state
    return job


def test_slots_are_acquired_with_the_claim_and_deployed_after_the_recovery() -> None:
    job = machine()
    assert job.handle(ProcessStarted()) == [Recover()]
    assert job.handle(Claimed(attempt=ONE)) == [AcquireSlots(attempt=ONE)]
    for ordinal in range(2):
        event = SlotRegistered(attempt=ONE, ordinal=ordinal, slot=slot(ordinal))
        assert job.handle(event) == []
    assert job.handle(JobRecovered(attempt=ONE)) == [DeploySlots(attempt=ONE)]
    assert job.handle(SlotReady(attempt=ONE, ordinal=0)) == []
    assert job.handle(SlotReady(attempt=ONE, ordinal=1)) == [StartAttempt(attempt=ONE)]


def test_lost_slot_ends_the_attempt_and_the_restart_delay_overlaps_the_recovery() -> None:
    job = running()
    instructions = job.handle(
        SlotDisappeared(attempt=ONE, slot=slot(1), reason="killed by signal 9")
    )
    assert instructions == [
        EndAttempt(attempt=ONE),
        ScheduleRestart(delay_s=0.5, restart=1),
        Recover(),
    ]
    job.handle(Claimed(attempt=TWO))
    for ordinal in range(2):
        job.handle(SlotRegistered(attempt=TWO, ordinal=ordinal, slot=slot(ordinal)))
    assert job.handle(JobRecovered(attempt=TWO)) == []
    assert job.state is JobState.RESTARTING
    assert job.handle(RestartDelayElapsed(restart=1)) == [DeploySlots(attempt=TWO)]
    assert job.restarts == 1


def test_loss_of_an_older_slot_allocation_is_ignored() -> None:
    job = machine()
    job.handle(ProcessStarted())
    job.handle(Claimed(attempt=ONE))
    late = SlotDisappeared(attempt=ONE, slot=slot(0), allocation_id=1, reason="killed by signal 9")
    job.handle(SlotRegistered(attempt=ONE, ordinal=0, slot=slot(0), allocation_id=1))
    # The slot is allocated again.
    job.handle(SlotRegistered(attempt=ONE, ordinal=0, slot=slot(0), allocation_id=3))
    assert job.handle(late) == []
    assert job.slots_missing == 1, "it would wait for a slot that nobody brings"
    job.handle(JobRecovered(attempt=ONE))
    other = SlotRegistered(attempt=ONE, ordinal=1, slot=slot(1), allocation_id=2)
    assert job.handle(other) == [DeploySlots(attempt=ONE)]
    assert job.handle(late) == [], "nor does it end what runs"
    gone = SlotDisappeared(attempt=ONE, slot=slot(0), allocation_id=3, reason="killed by signal 9")
    assert EndAttempt(attempt=ONE) in job.handle(gone)


@pytest.mark.parametrize(
    "state", [JobState.INITIALIZING, JobState.RESTARTING, JobState.WAITING_FOR_SLOTS]
)
def test_slot_lost_before_the_deployment_is_missing_again(state: JobState) -> None:
    """The ResourceManager brings another slot, and the attempt continues."""
    job = before_deployment(state)
    assert (
        job.handle(SlotDisappeared(attempt=TWO, slot=slot(0), allocation_id=3, reason="killed"))
        == []
    )
    assert job.slots_missing == 2
    assert job.restarts == 1


@pytest.mark.parametrize(
    "state", [JobState.INITIALIZING, JobState.RESTARTING, JobState.WAITING_FOR_SLOTS]
)
def test_silent_slot_before_the_deployment_ends_the_attempt(state: JobState) -> None:
    """The ResourceManager takes it for occupied, and would bring no other to this one."""
    job = before_deployment(state)
    gone = SlotDisappeared(
        attempt=TWO, slot=slot(0), allocation_id=3, reason="no heartbeat", silent=True
    )
    instructions = job.handle(gone)
    assert instructions[0] == EndAttempt(attempt=TWO)
    assert ScheduleRestart(delay_s=0.5, restart=2) in instructions
    assert str(job.error) == "Slot tm-1/0 was lost: no heartbeat."


def test_messages_of_an_older_attempt_change_nothing() -> None:
    job = running()
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("x")))
    job.handle(Claimed(attempt=TWO))
    assert job.handle(SlotRegistered(attempt=ONE, ordinal=0, slot=slot(0))) == []
    assert job.handle(AttemptFailed(attempt=ONE, error=ExternalError("late"))) == []
    assert job.state is JobState.INITIALIZING
    assert job.slots_missing == 2


def test_recovery_of_a_failed_attempt_is_not_used_for_the_next_attempt() -> None:
    job = machine()
    job.handle(ProcessStarted())
    job.handle(Claimed(attempt=ONE))
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("a slot that was not deployed yet")))
    assert job.handle(RestartDelayElapsed(restart=1)) == [Recover()]
    assert job.handle(JobRecovered(attempt=ONE)) == []
    job.handle(Claimed(attempt=TWO))
    assert job.handle(JobRecovered(attempt=TWO)) == []
    assert job.state is JobState.WAITING_FOR_SLOTS


def test_failed_recovery_is_retried_only_after_the_restart_delay() -> None:
    job = machine()
    job.handle(ProcessStarted())
    failed = job.handle(RecoveryFailed(error=KafkaUnavailableError("no broker")))
    assert failed == [ScheduleRestart(delay_s=0.5, restart=1)]
    assert job.handle(RestartDelayElapsed(restart=1)) == [Recover()]


def test_restart_delay_of_an_earlier_restart_does_not_end_a_later_one() -> None:
    job = running()
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("x")))
    job.handle(Claimed(attempt=TWO))
    job.handle(JobRecovered(attempt=TWO))
    job.handle(AttemptFailed(attempt=TWO, error=ExternalError("y")))
    job.handle(Claimed(attempt=Attempt(3)))
    job.handle(JobRecovered(attempt=Attempt(3)))
    for ordinal in range(2):
        event = SlotRegistered(attempt=Attempt(3), ordinal=ordinal, slot=slot(ordinal))
        assert job.handle(event) == []
    assert job.handle(RestartDelayElapsed(restart=1)) == []
    assert job.handle(RestartDelayElapsed(restart=2)) == [DeploySlots(attempt=Attempt(3))]


def test_lost_data_fails_the_job_without_another_attempt() -> None:
    job = machine()
    job.handle(ProcessStarted())
    job.handle(Claimed(attempt=ONE))
    assert job.handle(RecoveryFailed(error=DataLossError("gone"))) == [
        EndAttempt(attempt=ONE),
        Close(outcome=JobState.FAILED),
    ]
    assert job.handle(CloseFailed(error=DataLossError("still gone"))) == [ExitProcess()]
    assert (job.state, str(job.error)) == (JobState.FAILED, "gone")


def test_job_closes_as_failed_with_its_error_if_the_restart_strategy_gives_up() -> None:
    job = running()
    job._next_delay = lambda: None
    error = UserCodeError("step 'total' raised")
    assert job.handle(AttemptFailed(attempt=ONE, error=error)) == [
        EndAttempt(attempt=ONE),
        Close(outcome=JobState.FAILED),
    ]
    assert job.handle(JobClosed()) == [ExitProcess()]
    assert (job.state, job.error) == (JobState.FAILED, error)


def test_a_bounded_job_ends_after_its_last_subtask_and_a_final_checkpoint() -> None:
    job = running()
    first, second = sorted(SUBTASKS)
    assert job.handle(SlotInputEnded(attempt=ONE, subtask=first)) == []
    assert job.handle(SlotInputEnded(attempt=ONE, subtask=second)) == [
        TakeFinalCheckpoint(attempt=ONE)
    ]
    assert job.handle(FinalCheckpointCommitted(attempt=ONE)) == [Close(outcome=JobState.FINISHED)]
    job.handle(JobClosed())
    assert job.state is JobState.FINISHED


def test_ended_subtasks_of_an_earlier_attempt_are_not_ended_in_the_next_one() -> None:
    """The next attempt begins at a checkpoint from before the end. A final checkpoint after its
    first ended subtask would leave out what the others have not read.
    """
    job, (first, second) = running(), sorted(SUBTASKS)
    for subtask in (first, second):
        job.handle(SlotInputEnded(attempt=ONE, subtask=subtask))
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("x")))
    job.handle(RestartDelayElapsed(restart=1))
    for event in started(TWO):
        job.handle(event)
    assert job.state is JobState.RUNNING
    assert job.handle(SlotInputEnded(attempt=TWO, subtask=first)) == []
    assert job.handle(SlotInputEnded(attempt=TWO, subtask=second)) == [
        TakeFinalCheckpoint(attempt=TWO)
    ]


def test_a_cancel_while_the_final_checkpoint_is_committed_stays_a_cancel() -> None:
    job = running()
    job.handle(StopRequested(final_checkpoint=True))
    assert job.handle(StopRequested(final_checkpoint=False)) == [Close(outcome=JobState.CANCELED)]
    assert job.handle(FinalCheckpointCommitted(attempt=ONE)) == []
    assert job.handle(JobClosed()) == [ExitProcess()]
    assert job.state is JobState.CANCELED


def test_stop_during_a_recovery_closes_the_job_only_after_the_recovery() -> None:
    job = machine()
    job.handle(ProcessStarted())
    job.handle(Claimed(attempt=ONE))
    assert job.handle(StopRequested(final_checkpoint=True)) == []
    assert job.handle(JobRecovered(attempt=ONE)) == [STOPPED_WITHOUT]


def test_failure_while_stopping_recovers_again_and_then_closes_without_a_checkpoint() -> None:
    job = running()
    job.handle(StopRequested(final_checkpoint=True))
    assert job.state is JobState.STOPPING
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("x")))
    job.handle(Claimed(attempt=TWO))
    assert job.handle(JobRecovered(attempt=TWO)) == [STOPPED_WITHOUT]
    job.handle(JobClosed())
    assert (job.state, job.stopped) == (JobState.FINISHED, StopEnd.WITHOUT_CHECKPOINT)


def test_stop_that_drains_ends_the_input_and_takes_the_final_checkpoint_after_it() -> None:
    job = running()
    assert job.handle(StopRequested(final_checkpoint=True, drain=True)) == [EndInput(attempt=ONE)]
    assert job.handle(StopRequested(final_checkpoint=True, drain=True)) == [], "sent again"
    assert job.handle(StopRequested(final_checkpoint=True)) == [], "some timers may have fired"
    assert job.state is JobState.RUNNING
    ends = [SlotInputEnded(attempt=ONE, subtask=subtask) for subtask in sorted(SUBTASKS)]
    assert [job.handle(end) for end in ends] == [[], [TakeFinalCheckpoint(attempt=ONE)]]
    assert not job.stops_early


def test_failure_while_draining_continues_the_drain_in_the_next_attempt() -> None:
    job = running()
    job.handle(StopRequested(final_checkpoint=True, drain=True))
    job.handle(AttemptFailed(attempt=ONE, error=ExternalError("x")))
    job.handle(RecoveryFailed(error=ExternalError("y")))
    job.handle(RestartDelayElapsed(restart=job.restarts))
    instructions = [each for event in started(TWO) for each in job.handle(event)]
    assert instructions[-2:] == [StartAttempt(attempt=TWO), EndInput(attempt=TWO)]


@pytest.mark.parametrize("state", [JobState.RESTARTING, JobState.WAITING_FOR_SLOTS])
def test_stop_that_drains_waits_for_the_deployment(state: JobState) -> None:
    job = before_deployment(state)
    assert job.handle(StopRequested(final_checkpoint=True, drain=True)) == []


def test_cancel_ends_a_job_that_drains() -> None:
    job = running()
    job.handle(StopRequested(final_checkpoint=True, drain=True))
    assert job.handle(StopRequested(final_checkpoint=False)) == [Close(outcome=JobState.CANCELED)]


@pytest.mark.parametrize("state", [JobState.RESTARTING, JobState.WAITING_FOR_SLOTS])
def test_stop_before_the_deployment_closes_without_a_final_checkpoint(state: JobState) -> None:
    job = before_deployment(state)
    assert job.handle(StopRequested(final_checkpoint=True)) == [STOPPED_WITHOUT]


def test_stop_end_is_reported_only_if_the_input_has_not_ended() -> None:
    for ended, stopped in ((0, StopEnd.WITH_CHECKPOINT), (1, StopEnd.WITH_CHECKPOINT), (2, "")):
        job = running()
        for subtask in sorted(SUBTASKS)[:ended]:
            job.handle(SlotInputEnded(attempt=ONE, subtask=subtask))
        job.handle(StopRequested(final_checkpoint=True))
        assert job.stops_early == (ended < 2)
        close = Close(outcome=JobState.FINISHED, stopped=stopped)
        assert job.handle(FinalCheckpointCommitted(attempt=ONE)) == [close]


def test_stop_whose_grace_period_ends_closes_without_a_final_checkpoint() -> None:
    job = running()
    assert job.handle(StopGraceElapsed(attempt=ONE)) == []  # no stop was requested
    job.handle(StopRequested(final_checkpoint=True))
    assert job.handle(StopGraceElapsed(attempt=ONE)) == [STOPPED_WITHOUT]


@pytest.mark.parametrize(
    "state", [JobState.INITIALIZING, JobState.RUNNING, JobState.STOPPING, JobState.CLOSING]
)
def test_stop_that_waits_too_long_ends_the_job_as_failed_without_a_close(state: JobState) -> None:
    error, job = StorageError("The storage is gone."), running()
    if state is JobState.INITIALIZING:
        job = machine()
        job.handle(ProcessStarted())
    assert job.handle(StopTimedOut(error=error)) == [], "no stop was requested"
    keeps = state in {JobState.RUNNING, JobState.STOPPING}
    job.handle(StopRequested(final_checkpoint=keeps, drain=state is JobState.RUNNING))
    assert job.state is state
    assert job.handle(StopTimedOut(error=error)) == [ExitProcess()]
    assert (job.state, job.error, job.stopped) == (JobState.FAILED, error, "")
    assert job.handle(JobClosed()) == []


def test_stop_reports_the_final_checkpoint_that_an_earlier_jobmaster_published() -> None:
    job = machine()
    job.handle(ProcessStarted())
    job.handle(StopRequested(final_checkpoint=True))
    job.handle(Claimed(attempt=TWO))
    close = Close(outcome=JobState.FINISHED, stopped=StopEnd.WITH_CHECKPOINT)
    assert job.handle(JobRecovered(attempt=TWO, final=True, stopped=True)) == [close]
    job = machine()
    job.handle(ProcessStarted())
    closed = JobClosedError("ended", "finished", StopEnd.WITHOUT_CHECKPOINT)
    job.handle(RecoveryFailed(error=closed))
    assert (job.state, job.stopped) == (JobState.FINISHED, StopEnd.WITHOUT_CHECKPOINT)


def test_recovered_final_checkpoint_finishes_the_job_without_a_deployment() -> None:
    job = machine()
    job.handle(ProcessStarted())
    job.handle(Claimed(attempt=TWO))
    assert job.handle(JobRecovered(attempt=TWO, final=True)) == [Close(outcome=JobState.FINISHED)]


def test_fenced_jobmaster_exits_and_never_claims_again() -> None:
    job = running()
    assert job.handle(AttemptFailed(attempt=ONE, error=FencedError("newer claim"))) == [
        ExitProcess()
    ]
    assert job.state is JobState.FENCED
    assert job.handle(ProcessStarted()) == []


@pytest.mark.parametrize("state", [JobState.FINISHED, JobState.CANCELED, JobState.FAILED])
def test_closed_journal_gives_the_end_state_of_the_job(
    state: JobState,
) -> None:
    job = machine(delay=None)
    job.handle(ProcessStarted())
    error = JobClosedError("job 'a' has ended", state.outcome)
    assert job.handle(RecoveryFailed(error=error)) == [ExitProcess()]
    assert job.state is state
    assert (job.error is error) == (state is JobState.FAILED)


def test_cancel_fails_the_job_if_the_journal_cannot_be_closed() -> None:
    job = running()
    job.handle(StopRequested(final_checkpoint=False))
    job.handle(CloseFailed(error=KafkaUnavailableError("no broker answers")))
    assert (job.state, str(job.error)) == (JobState.FAILED, "no broker answers")


def test_cancel_ends_as_fenced_if_another_attempt_claimed_the_journal() -> None:
    job = running()
    job.handle(StopRequested(final_checkpoint=False))
    job.handle(CloseFailed(error=FencedError("attempt 2 has claimed the job")))
    assert job.state is JobState.FENCED


def test_slot_request_timeout_reports_how_many_slots_the_job_has() -> None:
    job = machine(delay=None)
    job.handle(ProcessStarted())
    job.handle(Claimed(attempt=ONE))
    job.handle(SlotRegistered(attempt=ONE, ordinal=0, slot=slot(0)))
    job.handle(JobRecovered(attempt=ONE))
    assert job.state is JobState.WAITING_FOR_SLOTS
    job.handle(SlotRequestTimedOut(attempt=ONE))
    assert "needs 2 slots and got 1" in str(job.error)


def test_internal_error_closes_the_job_without_a_restart() -> None:
    for bug in (InternalError("bug"), reported(KeyError("x"))):
        job = running()
        job.handle(AttemptFailed(attempt=ONE, error=bug))
        assert job.state is JobState.CLOSING


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EROFS, errno.ECONNRESET])
def test_disk_or_connection_error_in_a_slot_restarts_the_job(number: int) -> None:
    job = running()
    error = reported(OSError(number, os.strerror(number)))
    job.handle(AttemptFailed(attempt=ONE, error=error))
    assert (job.state, job.restarts) == (JobState.INITIALIZING, 1)


def reported(error: Exception) -> TidegateError:
    """The error that the JobMaster receives for an untranslated failure in a slot."""
    return ErrorReport.of(error).exception()


errors: st.SearchStrategy[TidegateError] = st.sampled_from(
    [
        ExternalError("x"),
        DataLossError("x"),
        UserCodeError("x"),
        KafkaUnavailableError("x"),
        PipelineError("x"),
    ]
)
attempts = st.sampled_from([ONE, TWO, Attempt(3)])
ordinals = st.integers(0, 1)
events: st.SearchStrategy[Event] = st.one_of(
    st.just(ProcessStarted()),
    attempts.map(lambda a: Claimed(attempt=a)),
    st.builds(
        lambda a, f, s: JobRecovered(attempt=a, final=f, stopped=f and s),
        attempts,
        st.booleans(),
        st.booleans(),
    ),
    errors.map(lambda e: RecoveryFailed(error=e)),
    st.builds(lambda a, o: SlotRegistered(attempt=a, ordinal=o, slot=slot(o)), attempts, ordinals),
    st.builds(
        lambda a, o, s: SlotDisappeared(attempt=a, slot=slot(o), reason="x", silent=s),
        attempts,
        ordinals,
        st.booleans(),
    ),
    st.builds(lambda a, o: SlotReady(attempt=a, ordinal=o), attempts, ordinals),
    attempts.map(lambda a: SlotRequestTimedOut(attempt=a)),
    st.integers(1, 3).map(lambda n: RestartDelayElapsed(restart=n)),
    st.builds(lambda a, e: AttemptFailed(attempt=a, error=e), attempts, errors),
    st.builds(
        lambda a, s: SlotInputEnded(attempt=a, subtask=s),
        attempts,
        st.sampled_from(sorted(SUBTASKS)),
    ),
    st.booleans().map(lambda f: StopRequested(final_checkpoint=f)),
    st.just(StopRequested(final_checkpoint=True, drain=True)),
    attempts.map(lambda a: FinalCheckpointCommitted(attempt=a)),
    st.just(JobClosed()),
    errors.map(lambda e: CloseFailed(error=e)),
)


beginnings: st.SearchStrategy[list[Event]] = st.sampled_from(
    [
        [ProcessStarted()],
        UP_TO_RUNNING,
        [*UP_TO_RUNNING, StopRequested(final_checkpoint=True)],
        [*UP_TO_RUNNING, *(StopRequested(final_checkpoint=f) for f in (True, False))],
    ]
)
"""Chance alone comes seldom to a job that runs, and hardly ever to the ends of one."""


def assert_ended_in_order(job: JobMachine, story: list[Event], *, closing: bool) -> None:
    if job.state is JobState.FAILED:
        assert closing, "it failed without having been settled and closed"
    if job.state is JobState.FINISHED and not job.stopped:
        finals = (FinalCheckpointCommitted, JobRecovered)
        assert any(isinstance(one, finals) for one in story), "without a final checkpoint"


@given(beginnings, st.lists(events, max_size=40), st.sampled_from([None, 0.0, 1.0]))
def test_no_order_of_events_deploys_before_recovery_or_acts_after_the_end(
    beginning: list[Event], story: list[Event], delay: float | None
) -> None:
    job = machine(delay)
    recovered: set[Attempt] = set()
    for event in [*beginning, *story]:
        if isinstance(event, ProcessStarted) and job.state is not JobState.CREATED:
            continue  # comes once
        if (
            isinstance(event, FinalCheckpointCommitted)
            and event.attempt == job.attempt
            and job.state not in {JobState.STOPPING, JobState.CLOSING}
        ):
            continue  # comes only after TakeFinalCheckpoint; a cancel may come between
        if isinstance(event, Claimed) and job.attempt is not None:
            continue  # one claim for each recovery
        if isinstance(event, JobRecovered) and event.attempt != job.attempt:
            continue  # follows its claim
        ended = job.state in ENDED
        if isinstance(event, JobRecovered) and job.state is JobState.INITIALIZING:
            recovered.add(event.attempt)
        closing = job.state is JobState.CLOSING
        instructions = job.handle(event)
        job.validate()
        assert not (ended and instructions)
        if not ended:
            assert_ended_in_order(job, [*beginning, *story], closing=closing)
        for instruction in instructions:
            if isinstance(instruction, DeploySlots | StartAttempt):
                assert instruction.attempt in recovered
                assert instruction.attempt == job.attempt


@pytest.mark.parametrize(
    "error", [PipelineError("no module"), StartFailedError("it died"), RefusedError("no topic")]
)
def test_job_that_cannot_be_planned_or_restored_is_closed_as_failed(error: TidegateError) -> None:
    """Nothing was claimed, so no slot was asked for: `Close` claims, if there is a journal."""
    job = machine()
    assert job.handle(ProcessStarted()) == [Recover()]
    assert job.handle(RecoveryFailed(error=error)) == [Close(outcome=JobState.FAILED)]
    assert job.handle(JobClosed()) == [ExitProcess()]
    assert (job.state, job.error) == (JobState.FAILED, error)


def test_job_without_a_plan_finishes_if_its_final_checkpoint_is_published() -> None:
    job = machine()
    job.handle(ProcessStarted())
    assert job.handle(JobRecovered(attempt=ONE)) == [], "of an attempt that was not claimed"
    assert job.handle(JobRecovered(attempt=ONE, final=True)) == [Close(outcome=JobState.FINISHED)]


def test_illegal_state_change_raises_internal_error_with_both_states() -> None:
    job = machine()
    with pytest.raises(InternalError, match="created cannot become closing"):
        job.handle(StopRequested(final_checkpoint=False)) or job._close(JobState.CANCELED)
