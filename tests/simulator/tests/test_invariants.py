"""The watch over the commit protocol, given histories that are wrong: it must name each of them,
and no right one.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.simulator.invariants import STALL_S
from tests.simulator.journal_view import JournalPosition
from tests.simulator.pipelines import IN_A, Event
from tests.simulator.tests.history import JOB, TIMEOUT_MS, History
from tidegate.commit.journal.entries import Claim, Closed, LossAccepted
from tidegate.commit.transactional_ids import claim_id
from tidegate.protocol.subtask_snapshot import PreparedTransaction


@pytest.fixture
def history() -> History:
    made = History()
    made.claim()
    return made


# --- the journal ------------------------------------------------------------------------------


def test_checker_reports_nothing_for_a_correct_history(history: History) -> None:
    for counter in (1, 2):
        txn = history.prepare(slot=counter)
        number = history.publish(txn, counter=counter, offsets=(counter,))
        history.end(txn)
        history.settle(number)
    history.claim()
    history.watch.check_source_start(history.slot)
    history.create(Closed, attempt=history.attempt, outcome="finished")
    history.watch.check_nothing_open()
    assert history.found == ""
    assert history.oracle.visible == 2


def test_checker_reports_a_gap_in_the_journal(history: History) -> None:
    history.create(Claim, submission_id="s", restore="latest", skipped=1)
    assert history.found == "journal entry 3 was created after 1"


def test_checker_reports_a_publication_of_an_older_attempt_after_a_newer_claim(
    history: History,
) -> None:
    old = history.attempt
    history.claim()
    history.publish(attempt=old)
    assert history.found == "attempt 1 published after attempt 2 claimed"


def test_checker_reports_a_close_by_an_older_attempt_after_a_newer_claim(history: History) -> None:
    old = history.attempt
    history.claim()
    history.create(Closed, attempt=old, outcome="finished")
    assert history.found == "attempt 1 closed after attempt 2 claimed"


def test_checker_reports_an_ended_job_whose_journal_is_open(history: History) -> None:
    history.watch.ended("another", "FAILED")
    assert history.found == "", "nothing of it has run"
    history.watch.ended("s", "FAILED")
    assert history.found == "the job is failed, and its journal ends with claim of attempt 1"


def test_checker_reports_a_failed_job_whose_journal_says_finished(history: History) -> None:
    history.create(Closed, attempt=history.attempt, outcome="finished")
    history.watch.ended("s", "FINISHED")
    assert history.found == ""
    history.watch.ended("s", "FAILED")
    assert history.found == "the job is failed, and its journal ends with closed"


def test_checker_reports_a_checkpoint_id_that_is_published_twice(history: History) -> None:
    history.publish(counter=7)
    history.publish(counter=7)
    assert history.found == "checkpoint id 1-7 was used twice"


def test_checker_reports_a_checkpoint_that_lists_a_transaction_of_a_newer_attempt(
    history: History,
) -> None:
    old = history.attempt
    history.claim()
    txn = history.prepare()
    history.watch.journal.attempt = old  # as if the claim did not count
    history.publish(txn, attempt=old)
    assert history.found == f"1-1 names {txn.transactional_id}"


def test_checker_reports_a_checkpoint_whose_files_are_not_stored(history: History) -> None:
    history.blobs.objects[f"{JOB}/there"] = b""
    history.publish(counter=1, files=("there",))
    assert history.found == ""
    history.publish(counter=2, files=("there", "elsewhere"))
    assert history.found == "checkpoint 1-2 names elsewhere, which is not stored"


def test_checker_reports_a_checkpoint_whose_offsets_go_back(history: History) -> None:
    history.publish(counter=1, offsets=(5, 5))
    history.publish(counter=2, offsets=(6, 4))
    assert history.found == "checkpoint 1-2 goes back in in-a-1: from offset 5 to 4"


def test_checker_reports_a_checkpoint_that_lost_a_partition(history: History) -> None:
    history.publish(counter=1, offsets=(5, 5))
    history.publish(counter=2, offsets=(6,))
    assert history.found == "checkpoint 1-2 has lost a partition"


def test_checker_reports_a_listed_transaction_with_records_after_the_checkpoint(
    history: History,
) -> None:
    before = history.event()
    txn = history.prepare(before, history.event())
    history.publish(txn, offsets=(1,))
    assert history.found == "a checkpoint names a transaction with in-a-0:1 from behind it"


def test_checker_reports_a_checkpoint_that_leaves_out_a_prepared_transaction(
    history: History,
) -> None:
    first, _ = history.prepare(), history.prepare(slot=1)
    history.publish(first)
    assert history.found == ("a checkpoint is behind in-a-0:1 (key a), and lacks it in out-a")


def test_checker_accepts_a_checkpoint_without_a_committed_but_invisible_transaction(
    history: History,
) -> None:
    first, second = history.prepare(), history.prepare(slot=1)
    history.publish(first, second, counter=1)
    history.end(second)  # and the first one holds readers back
    history.publish(first, counter=2)
    assert history.found == ""
    assert history.oracle.visible == 0


# --- ends -------------------------------------------------------------------------------------


def test_checker_reports_an_end_txn_before_the_publication(history: History) -> None:
    txn = history.prepare()
    history.end(txn)
    assert "is ended as" in history.found
    assert "no publication names it" in history.found


@pytest.mark.parametrize("field", ["producer_id", "epoch"])
def test_checker_reports_an_end_txn_with_another_producer_id_or_epoch(
    history: History, field: str
) -> None:
    txn = history.prepare()
    history.publish(txn)
    history.end(msgspec.structs.replace(txn, **{field: getattr(txn, field) + 1}))
    assert "no publication names it" in history.found


def test_checker_reports_settled_while_a_transaction_is_open(history: History) -> None:
    txn = history.prepare()
    history.settle(history.publish(txn))
    assert history.found == f"settled, and {txn.transactional_id} is open"


def test_checker_reports_settled_after_a_transaction_timed_out(history: History) -> None:
    txn = history.prepare()
    number = history.publish(txn)
    history.time_out()
    history.settle(number)
    assert history.found == f"settled, and {txn.transactional_id} is timed out"


def test_checker_reports_settled_for_a_publication_that_is_not_the_last(history: History) -> None:
    first = history.publish(counter=1)
    history.publish(counter=2)
    history.settle(first)
    assert history.found == f"settled is publication {first}, which is not the last"


def test_checker_reports_visible_output_that_is_written_a_second_time(history: History) -> None:
    event = history.event()
    first = history.prepare(event)
    history.publish(first, counter=1)
    history.end(first)
    again = history.prepare(event, slot=1)
    history.publish(again, counter=2)
    history.end(again)
    assert "in-a-0:0 stands there a second time" in history.found


# --- losses -----------------------------------------------------------------------------------


@pytest.fixture
def losing(history: History) -> History:
    """Brokers may be away for too long."""
    history.watch.may_lose = True
    return history


def test_checker_accepts_a_justified_loss_that_the_user_accepted(losing: History) -> None:
    first, second = losing.prepare(), losing.prepare(slot=1)
    number = losing.publish(first, second)
    losing.end(first)
    losing.time_out()
    lost = losing.lose(number, second)
    losing.watch.accepting = True
    losing.create(LossAccepted, lost=lost, submission_id="s")
    losing.publish(counter=2)
    assert losing.found == ""
    assert (losing.oracle.visible, losing.oracle.missing) == (1, 0)


def two_of_which_the_first_times_out(losing: History) -> tuple[int, PreparedTransaction]:
    """Readers see the second one as soon as the first is aborted."""
    first, second = losing.prepare(), losing.prepare(slot=1)
    number = losing.publish(first, second)
    losing.end(second)
    losing.time_out()
    assert losing.found == ""
    return number, first


def test_checker_accepts_a_loss_that_readers_see_before_it_is_recorded(losing: History) -> None:
    number, first = two_of_which_the_first_times_out(losing)
    losing.lose(number, first)
    losing.watch.check_nothing_open()
    assert losing.found == ""
    assert (losing.oracle.visible, losing.oracle.accepted_losses) == (1, 1)


def test_checker_reports_a_loss_that_is_never_recorded(losing: History) -> None:
    _, first = two_of_which_the_first_times_out(losing)
    losing.watch.check_nothing_open()
    assert losing.found == f"{first.transactional_id} has timed out, and no entry states the loss"


def test_checker_reports_a_loss_in_a_run_that_may_not_lose_output(history: History) -> None:
    txn = history.prepare()
    number = history.publish(txn)
    history.time_out()
    history.lose(number, txn)
    assert history.found == "output is lost: some is gone"


def test_checker_reports_a_recorded_loss_of_a_committed_transaction(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.end(txn)
    losing.lose(number, txn)
    assert losing.found == f"{txn.transactional_id} is stated to be lost, and is committed"


def test_checker_reports_a_recorded_loss_that_omits_a_timed_out_transaction(
    losing: History,
) -> None:
    first, second = losing.prepare(), losing.prepare(slot=1)
    number = losing.publish(first, second)
    losing.time_out()
    losing.lose(number, first)
    found = f"{second.transactional_id} is not stated to be lost, and is timed out"
    assert losing.found == found


def test_checker_reports_a_recorded_loss_of_a_fenced_transaction(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.requester = losing.process("another")  # its request is named too, but not the first time
    losing.log.fence(txn.transactional_id)
    losing.watch.found = None
    losing.lose(number, txn)
    assert losing.found == f"{txn.transactional_id} is stated to be lost, and is fenced"


def test_checker_reports_a_recorded_loss_without_a_timed_out_transaction(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.end(txn, commit=False)
    losing.lose(number, txn)
    assert losing.found == "stated a loss, and no transaction of it has timed out"


def test_checker_reports_a_publication_after_a_loss_that_is_not_accepted(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.time_out()
    losing.lose(number, txn)
    losing.claim()
    losing.publish()
    checkpoint = f"{losing.attempt}-1"
    assert losing.found == f"{checkpoint} is published after a loss that is not accepted"


def test_checker_reports_a_loss_that_is_accepted_without_the_user(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.time_out()
    losing.create(LossAccepted, lost=losing.lose(number, txn), submission_id="s")
    assert losing.found == "a loss is accepted, and the user has not said so"


def test_checker_reports_a_recorded_loss_of_records_that_belong_to_no_output(
    losing: History,
) -> None:
    losing.event()
    txn = losing.prepare(Event(f"{IN_A}-0:0", "another key", 1))
    losing.publish(counter=1, offsets=(0,))
    losing.watch.journal.last = JournalPosition(
        losing.watch.journal.last.publication, frozenset({txn})
    )
    losing.watch.journal.first_named[txn] = 2
    losing.time_out()
    losing.lose(2, txn)
    assert losing.found == "in-a-0:0 was stated to be lost, and is visible or belongs nowhere"


# --- retractions ------------------------------------------------------------------------------


def test_checker_accepts_a_justified_rollback_that_takes_offsets_back(losing: History) -> None:
    losing.publish(counter=1, offsets=(3,))
    event = losing.event()
    txn = losing.prepare(event)
    number = losing.publish(txn, counter=2, offsets=(4,))
    losing.time_out()
    losing.roll_back(number, txn)
    again = losing.prepare(event, slot=1)
    number = losing.publish(again, counter=3, offsets=(3,))
    losing.end(again)
    losing.settle(number)
    assert losing.found == ""


def test_checker_reports_a_rollback_of_a_committed_transaction(losing: History) -> None:
    first, second = losing.prepare(), losing.prepare(slot=1)
    number = losing.publish(first, second)
    losing.end(first)
    losing.time_out()
    losing.roll_back(number, first, second)
    assert losing.found == f"rolled back, and {first.transactional_id} is committed"


def test_checker_reports_a_rollback_of_an_open_transaction(losing: History) -> None:
    txn = losing.prepare()
    losing.roll_back(losing.publish(txn), txn)
    assert losing.found == f"rolled back, and {txn.transactional_id} is open"


def test_checker_reports_a_rollback_that_lists_other_transactions(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.time_out()
    losing.roll_back(number)
    assert "names other transactions" in losing.found


def test_checker_reports_a_rollback_without_a_timed_out_transaction(losing: History) -> None:
    txn = losing.prepare()
    number = losing.publish(txn)
    losing.end(txn, commit=False)
    losing.roll_back(number, txn)
    assert losing.found == "rolled back, and no transaction of it has timed out"


# --- fences -----------------------------------------------------------------------------------


def test_checker_reports_a_fence_of_an_id_of_a_newer_attempt(history: History) -> None:
    history.log.fence(history.name(attempt=2))
    assert history.found == (
        f"jobmaster of attempt 1 fences {history.name(attempt=2)} of a newer attempt"
    )


def test_checker_reports_a_fence_of_an_id_that_an_unsettled_publication_lists(
    history: History,
) -> None:
    txn = history.prepare()
    history.publish(txn)
    history.claim()
    history.log.fence(txn.transactional_id)
    assert history.found == (
        f"jobmaster initialises {txn.transactional_id}, which an unsettled publication names"
    )


def test_checker_reports_an_id_that_a_process_of_no_attempt_initialises(history: History) -> None:
    history.requester = history.process("stranger")
    history.log.fence(history.name())
    assert history.found == f"stranger initialises {history.name()}"


def test_checker_reports_an_id_of_an_attempt_whose_claim_has_not_initialised_its_id(
    history: History,
) -> None:
    history.claim(initialises=False)
    history.requester = history.slot
    history.clients.producer({}, history.name(), TIMEOUT_MS)
    assert history.found == (
        f"slot-2 initialises {history.name()}, and its claim has not initialised its id"
    )


def test_checker_reports_a_slot_that_initialises_the_claim_id(history: History) -> None:
    history.requester = history.slot
    history.log.fence(claim_id(JOB, "j"))
    assert history.found == f"slot-1 initialises {claim_id(JOB, 'j')}"


def test_checker_reports_a_slot_that_uses_an_id_of_another_attempt(history: History) -> None:
    history.claim()
    history.requester = history.slot
    history.clients.producer({}, history.name(attempt=1), TIMEOUT_MS)
    assert history.found == f"a slot of attempt 2 initialises {history.name(attempt=1)}"


def test_checker_reports_a_slot_that_reuses_an_id_whose_transaction_is_open(
    history: History,
) -> None:
    txn = history.prepare()
    history.prepare()
    assert history.found == f"slot-1 initialises {txn.transactional_id}, whose transaction is open"


def test_checker_reports_an_id_that_two_workers_of_a_backfill_initialise(history: History) -> None:
    for _ in range(2):
        history.requester = history.process("worker")
        history.watch.record_worker(history.requester, history.attempt)
        history.clients.producer({}, history.name(), TIMEOUT_MS)
    assert history.found == f"worker initialises {history.name()}, as another worker has done"


def test_checker_accepts_a_worker_that_initialises_its_id_again_in_its_next_attempt(
    history: History,
) -> None:
    """A thread of a task that has ended may still ask."""
    history.requester = worker = history.process("worker")
    for attempt in (1, 2):
        history.watch.record_worker(worker, attempt)
        history.clients.producer({}, history.name(attempt=1), TIMEOUT_MS)
    assert history.found == ""


def test_checker_reports_a_published_wave_whose_tasks_have_read_other_runs(
    history: History,
) -> None:
    history.watch.record_wave(history.attempt, "a task was given other rows")
    history.publish()
    assert history.found == "1-1 is published, although a task was given other rows"


def test_checker_reports_a_source_that_starts_before_older_ids_are_fenced(history: History) -> None:
    txn = history.prepare()
    history.advance_time(1.0)
    history.claim()
    history.watch.check_source_start(history.slot)
    assert history.found == (
        f"a source of attempt 2 starts, and {txn.transactional_id} is not fenced"
    )


# --- what may not last ------------------------------------------------------------------------


def test_checker_reports_a_transaction_of_a_dead_attempt_that_stays_open_too_long(
    history: History,
) -> None:
    """Once all is quiet, a dead attempt's transaction may stay open for a while and no longer."""
    txn = history.prepare()
    history.advance_time(1.0)
    history.claim()
    history.watch.check_for_stalls(quiet_since_s=None)
    history.scheduler.now = 100.0
    history.watch.check_for_stalls(quiet_since_s=None)
    history.watch.check_for_stalls(quiet_since_s=100.0)
    history.scheduler.now = 100.0 + STALL_S
    history.watch.check_for_stalls(quiet_since_s=100.0)
    assert history.found == ""
    history.scheduler.now += 1.0
    history.watch.check_for_stalls(quiet_since_s=100.0)
    assert history.found == (
        f"{txn.transactional_id} of a dead attempt is open for {STALL_S + 1:.0f} s"
    )


def test_checker_accepts_a_long_open_transaction_of_the_current_attempt(history: History) -> None:
    history.prepare()
    history.watch.check_for_stalls(quiet_since_s=0.0)
    history.scheduler.now = 10 * STALL_S
    history.watch.check_for_stalls(quiet_since_s=0.0)
    assert history.found == ""


def test_checker_reports_a_transaction_that_is_open_after_the_job_ended(history: History) -> None:
    txn = history.prepare()
    history.watch.check_nothing_open()
    assert history.found == f"{txn.transactional_id} is open after the end of the job"


def test_checker_reports_a_transaction_that_is_open_after_a_job_with_backfills_ended(
    history: History,
) -> None:
    """A transaction that a worker of a dead backfill opens behind the close is excused. No other
    is.
    """
    history.watch.waves = 3
    txn = history.prepare()
    history.watch.check_nothing_open()
    assert history.found == f"{txn.transactional_id} is open after the end of the job"


def test_checker_keeps_only_the_first_violation(history: History) -> None:
    history.watch.record_violation("first")
    history.watch.record_violation("second")
    assert history.found == "first"
