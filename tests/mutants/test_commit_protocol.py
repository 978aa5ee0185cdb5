"""Bugs in the commit protocol, above all the variants of its model; and who finds them.

Those of the model's table that are not here stand in `tests/commit/test_*_in_a_world.py`;
`docs/evidence/mutants.md` has all of them.
"""

from __future__ import annotations

import pytest

from tests.checkpoint import test_restore as restore_tests
from tests.commit import test_confirmation as confirmation_tests
from tests.commit import test_decisions as recovery_tests
from tests.commit import test_procedures as procedure_tests
from tests.commit.masters import JobMaster, Tasks
from tests.mutants.finders import aborting_world, once, quiet, simulator, world
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tidegate.checkpoint.source_changes import find_log_change
from tidegate.commit.claim import claim
from tidegate.commit.confirmation import Confirmation
from tidegate.commit.decisions import may_fence
from tidegate.commit.fencing import fence_zombies
from tidegate.commit.journal.claimed import write_entry
from tidegate.commit.journal.state import _published
from tidegate.commit.publish import _check_prepared, publish
from tidegate.commit.recover import recover
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter

NO_CLAIM = (
    Edit(  # an attempt has a number of its own and writes nothing before its first publication
        claim,
        "        found = yield from write_entry(job, entry, retry_policy)\n",
        "        if state.number and isinstance(entry, Claim):\n"
        "            after, attempt = state.after(entry), Attempt(1_000 * entry.created_ms)\n"
        "            unwritten = __import__('msgspec').structs.replace(\n"
        "                after, number=state.number, nonce=state.nonce, attempt=attempt\n"
        "            )\n"
        "            return ClaimedJournal(\n"
        "                job=job,\n"
        "                submission_id=submission_id,\n"
        "                attempt=attempt,\n"
        "                state_before_claim=state,\n"
        "                state=unwritten,\n"
        "            )\n"
        "        found = yield from write_entry(job, entry, retry_policy)\n",
    ),
    Edit(_published, "_require(attempt == state.attempt,", "_require(bool(attempt),"),
    Edit(_published, "irrevocable=False,", "irrevocable=False,\n        attempt=attempt,"),
)
CLAIM_AFTER_READ = (
    Edit(
        claim,
        "    request = _ClaimRequest(\n",
        "    first = state\n    request = _ClaimRequest(\n",
    ),
    Edit(
        claim,
        "            journal = _claimed(request, state, found, snapshot_interval)\n",
        "            journal = _claimed(request, state, found, snapshot_interval)\n"
        "            journal.state = __import__('msgspec').structs.replace(\n"
        "                journal.state,\n"
        "                publication=first.publication,\n"
        "                settled=first.settled,\n"
        "                recent_checkpoints=first.recent_checkpoints,\n"
        "                still_pending=first.still_pending,\n"
        "                introduced=first.introduced,\n"
        "                irrevocable=first.irrevocable,\n"
        "                rollback_targets=first.rollback_targets,\n"
        "            )\n",
    ),
)
NO_SWEEP = Edit(
    fence_zombies,
    "    fenced = _fenceable(\n"
    "        journal, listed, fenced_before=journal.attempt, include_current_attempt=False\n"
    "    )",
    "    fenced = []",
)
ONLY_ONGOING = Edit(
    may_fence,
    "return parts.attempt >= fenced_before or state is TransactionState.ONGOING",
    "return state is TransactionState.ONGOING",
)
SOURCES_FIRST = (
    Edit(
        recover,
        "    fenced = yield from fence_older_attempts(journal, retry_policy=fence_retry)\n"
        "    return",
        "    fenced = ()\n    return",
    ),
)
NO_ATTEMPT_IN_ID = (Edit(Tasks._ids, "attempt=self.attempt", "attempt=Attempt(1)"),)
NO_ATTEMPT_IN_ID_OF_SINK = (
    Edit(KafkaSinkWriter.__init__, "attempt=context.attempt", "attempt=type(context.attempt)(1)"),
)
FREE_AT_PREPARE = (
    Edit(
        Tasks.prepare,
        "self.pending.append(txn)\n",
        "self.pending.append(txn)\n        self.taken.discard(tid)\n",
    ),
)
ONE_PRODUCER = (
    Edit(
        Tasks.write_one,
        "self.open[sink] = (free[0], self.world.init(free[0]))",
        "self.open[sink] = (\n"
        "                free[0], self.world.broker.get(free[0]) or self.world.init(free[0])\n"
        "            )",
    ),
)
LATE_ABORT = (
    Edit(
        write_entry,
        "            unknown = True  # until it is certain that what stands there counts\n",
        "            if outcome is CreateResult.UNKNOWN:\n"
        "                raise StorageError('given up')\n",
    ),
    Edit(
        JobMaster._publish,
        "        if not rules.keep_transactions_of_unknown_publications:\n"
        "            for txn in acknowledged:\n"
        "                self.world.init(txn.transactional_id)\n"
        "            raise\n",
        "        self.world.ends += [(txn, False) for txn in acknowledged]\n        raise\n",
    ),
)
NO_LOOK = (
    Edit(
        publish,
        "    yield from _check_prepared("
        "introduced, manifest.splits, describe_retry, is_canceled)\n",
        "",
    ),
)
NO_TOPIC_IDS = (
    Edit(
        find_log_change, "differs(old.topic_id, offsets.topic_id)", "differs('', offsets.topic_id)"
    ),
)
NO_LEADER_EPOCHS = (Edit(find_log_change, "end is not None and end < old.offset", "False"),)
NO_ENDS = (Edit(find_log_change, "offsets.latest < old.offset", "offsets.latest < 0"),)
NO_TOPIC_IDS_BEFORE_PUBLICATION = (
    Edit(
        _check_prepared,
        "    yield from check_topics(splits, descriptions.pop(), retry_policy)\n",
        "    descriptions.pop()\n",
    ),
)
NO_CONFIRMATION = (Edit(Confirmation.observe, ">= self._repeated_s", ">= 0.0"),)

MUTANTS = [
    Mutant("an attempt does not claim", NO_CLAIM, world, 100, 1, "no claim"),
    Mutant(
        "an attempt stands on what it read before it claimed",
        CLAIM_AFTER_READ,
        world,
        100,
        1,
        "claim after read",
    ),
    Mutant(
        "only what is open is fenced, and only once",
        (NO_SWEEP, ONLY_ONGOING),
        simulator,
        40,
        0,
        "fence only Ongoing once",
    ),
    Mutant(
        "only what is open is fenced",
        (ONLY_ONGOING,),
        once(recovery_tests.test_ids_of_older_attempts_are_fenced_in_any_transaction_state),
        1,
        1,
        "fence only Ongoing once",
    ),
    Mutant(
        "everything is fenced, but only once",
        (NO_SWEEP,),
        simulator,
        40,
        0,
        "fence any state once",
    ),
    Mutant(
        "a sweep fences nothing",
        (NO_SWEEP,),
        quiet(procedure_tests.test_sweep_fences_only_the_id_that_a_zombie_opened_after_recovery),
        1,
        1,
        "fence any state once",
    ),
    Mutant(
        "sources start before the fence", SOURCES_FIRST, simulator, 40, 1, "sources before fencing"
    ),
    Mutant("an id lacks the attempt", NO_ATTEMPT_IN_ID, world, 100, 1, "id without the attempt"),
    Mutant(
        "a sink's ids lack the attempt",
        NO_ATTEMPT_IN_ID_OF_SINK,
        simulator,
        40,
        1,
        "id without the attempt",
    ),
    Mutant(
        "a slot is free once it is prepared",
        FREE_AT_PREPARE,
        world,
        100,
        1,
        "slot reuse before commit",
    ),
    Mutant(
        "a producer serves many transactions",
        ONE_PRODUCER,
        world,
        400,
        0,
        "one producer, many transactions",
    ),
    Mutant(
        "after an unknown create, an abort is on its way",
        LATE_ABORT,
        world,
        100,
        1,
        "delayed EndTxn(abort) after giving up",
    ),
    Mutant(
        "nothing is looked at before a publication",
        NO_LOOK,
        quiet(procedure_tests.test_publication_is_refused_if_a_prepared_transaction_is_not_open),
        1,
        1,
        "none before publication",
    ),
    Mutant(
        "nothing is looked at before a publication",
        NO_LOOK,
        aborting_world,
        100,
        0,
        "none before publication",
    ),
    Mutant(
        "a restore compares no topic ids",
        NO_TOPIC_IDS,
        once(
            restore_tests.test_a_topic_that_was_created_again_is_refused_with_both_ids_and_offsets
        ),
        1,
        1,
    ),
    Mutant(
        "a restore compares no leader epochs",
        NO_LEADER_EPOCHS,
        once(restore_tests.test_a_log_that_was_truncated_and_has_grown_again_is_refused),
        1,
        1,
    ),
    Mutant(
        "a restore compares no ends of logs",
        NO_ENDS,
        once(restore_tests.test_position_beyond_the_end_of_the_partition_is_refused),
        1,
        1,
    ),
    Mutant(
        "no topic ids are compared before a publication",
        NO_TOPIC_IDS_BEFORE_PUBLICATION,
        quiet(procedure_tests.test_publication_is_refused_if_a_source_topic_was_recreated),
        1,
        1,
    ),
    Mutant(
        "one answer about a topic is final",
        NO_CONFIRMATION,
        once(confirmation_tests.test_one_answer_is_never_final_however_late_it_comes),
        1,
        1,
    ),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
