"""Bugs in what a restore or a start trusts: the Kafka cluster, the storage, the journal's end."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commit import test_lost_tail as tail_tests
from tests.commit import test_other_cluster as cluster_tests
from tests.controlplane.journal import test_journal_worker as journal_tests
from tests.dataplane import test_shared_view as view_tests
from tests.mutants.finders import once, quiet, simulator_where
from tests.mutants.planting import Detector, Edit, Mutant, assert_found, mutant_params
from tests.mutants.test_commit_protocol import NO_TOPIC_IDS
from tests.simulator import mishaps, swaps
from tidegate.commit.claim import _refuse, _refuse_used_name
from tidegate.commit.cluster_check import refuse_manifest, refuse_other_cluster
from tidegate.commit.fencing import fence_older_attempts
from tidegate.commit.lost_tail import find_lost_tail
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.controlplane.jobmaster.storage_watch import StorageWatch
from tidegate.controlplane.journal.job_storage import JobStorage
from tidegate.dataplane.shared_view import _check_storage, check_view


def backup(test: Callable[[tail_tests.Backup], object]) -> Detector:
    """A test of a journal that is put back."""
    return once(test, tail_tests.Backup)


def decided(made: tail_tests.Backup) -> None:
    """`test_lost_tail.test_submit_with_explicit_restore_accepts_and_records_the_lost_attempt`"""
    tail_tests.test_submit_with_explicit_restore_accepts_and_records_the_lost_attempt(made, "1-1")


def in_a_folder(test: Callable[[Path], object]) -> Detector:
    """A test that is given an empty folder."""

    @functools.wraps(test)
    def run(_seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))

    return run


NO_CLUSTER_CHECK = Edit(
    refuse_manifest,
    "if is_other_cluster(manifest, cluster) and not consent and state.moved_to != cluster:",
    "if False:",
)
TRANSACTIONS_LEFT_BEHIND = Edit(
    refuse_other_cluster,
    "if foreign and not (first_claim and accept_data_loss):",
    "if False:",
)
CLUSTER_CHANGES = Edit(
    refuse_other_cluster,
    'if not first_claim and state.kafka_cluster not in {"", cluster}:',
    "if False:",
)
NOT_CLOSED = Edit(
    JobMachine._failed,
    "return ended + self._close(JobState.FAILED)",
    "return ended + self._end(JobState.FAILED)",
)
NO_CLAIMED_ATTEMPT = Edit(_refuse, "if state.attempt < written:", "if False:")
NO_STORAGE_CHECK = Edit(
    _check_storage,
    "if isinstance(entry, Claim) and entry.nonce == deploy.claim_nonce:",
    "if True:",
)
ANY_CLAIM = Edit(_check_storage, " and entry.nonce == deploy.claim_nonce:", ":")
NO_CLUSTER_OF_SLOTS = Edit(check_view, "if cluster != deploy.kafka_cluster:", "if False:")
OLD_JOURNAL = Edit(
    _refuse,
    'if tail is not None and not (first_claim and request.restore != "latest"):',
    "if False:",
)
NO_IDS = Edit(find_lost_tail, "attempt = max(attempts, default=Attempt(0))", "attempt = Attempt(0)")
NO_OFFSETS = Edit(find_lost_tail, "newest = _newest_committed(state, commits)", "newest = None")
LOST_ATTEMPTS_OPEN = Edit(
    fence_older_attempts, "    to_fence += _ids_of_lost_attempts(journal, listed)\n", ""
)

NAME_IS_FREE = Edit(_refuse_used_name, "if others:", "if False:")
NOT_BOUND = Edit(vars(JobStorage)["store"].func, "if self.identity:", "if False:")
WAITS_FOR_EVER = Edit(StorageWatch._exit_if_hanging, "if call is not None:", "if False:")


def found_where(name: str, edit: Edit, kind: str, seeds: int, found_min: int = 1) -> Mutant:
    """A mutant for the simulator, in runs with a mishap or a swap of this kind."""
    return Mutant(name, (edit,), simulator_where(kind, seeds), seeds, found_min)


IN_RUNS = [
    found_where(
        "a checkpoint of another Kafka cluster is restored",
        NO_CLUSTER_CHECK,
        swaps.OTHER_CLUSTER,
        20,
    ),
    found_where(
        "a checkpoint of another Kafka cluster is restored", NO_CLUSTER_CHECK, swaps.MIRROR, 20
    ),
    found_where("a restore compares no topic ids", NO_TOPIC_IDS[0], swaps.RECREATED, 20),
    found_where("a journal that lacks its end is claimed", OLD_JOURNAL, swaps.OLDER, 20),
    found_where("a name that Kafka knows is free", NAME_IS_FREE, swaps.EMPTY, 20),
    found_where("a failed job is not closed", NOT_CLOSED, swaps.RECREATED, 20),
    found_where(
        "a slot does not look for its attempt's claim",
        NO_STORAGE_CHECK,
        mishaps.SLOTS_ELSEWHERE,
        60,
        0,
    ),
    found_where(
        "a slot does not compare its Kafka cluster",
        NO_CLUSTER_OF_SLOTS,
        mishaps.SLOTS_MISDIRECTED,
        20,
    ),
    found_where("a JobMaster uses whatever lies behind the path", NOT_BOUND, mishaps.REPLACED, 20),
    found_where(
        "a JobMaster waits for a call that never returns", WAITS_FOR_EVER, mishaps.HANGS, 40
    ),
]

MUTANTS = [
    *IN_RUNS,
    Mutant(
        "a checkpoint of another Kafka cluster is restored",
        (NO_CLUSTER_CHECK,),
        quiet(cluster_tests.test_a_checkpoint_of_another_cluster_is_refused_before_the_claim),
        1,
        1,
    ),
    Mutant(
        "an older checkpoint of another Kafka cluster is restored",
        (NO_CLUSTER_CHECK,),
        quiet(cluster_tests.test_restore_of_an_older_checkpoint_of_another_cluster_is_refused),
        1,
        1,
    ),
    Mutant(
        "transactions of another Kafka cluster are left behind",
        (TRANSACTIONS_LEFT_BEHIND,),
        quiet(cluster_tests.test_move_to_another_cluster_is_refused_while_commits_are_pending),
        1,
        1,
    ),
    Mutant(
        "a submission goes on on another Kafka cluster",
        (CLUSTER_CHANGES,),
        quiet(cluster_tests.test_unpublished_submission_is_refused_on_another_cluster),
        1,
        1,
    ),
    Mutant(
        "a journal that is lost is begun again",
        (NO_CLAIMED_ATTEMPT,),
        once(journal_tests.test_claim_is_refused_if_the_journal_of_an_earlier_claim_is_lost),
        1,
        1,
    ),
    Mutant(
        "a slot does not look for its attempt's claim",
        (NO_STORAGE_CHECK,),
        in_a_folder(view_tests.test_slot_refuses_a_storage_without_the_claim_of_its_attempt),
        1,
        1,
    ),
    Mutant(
        "a slot takes any claim of that number for its attempt's",
        (ANY_CLAIM,),
        in_a_folder(view_tests.test_slot_refuses_a_storage_whose_claim_is_of_another_journal),
        1,
        1,
    ),
    Mutant(
        "a slot does not compare its Kafka cluster",
        (NO_CLUSTER_OF_SLOTS,),
        in_a_folder(view_tests.test_slot_refuses_brokers_of_another_kafka_cluster_and_names_them),
        1,
        1,
    ),
    Mutant(
        "a journal that lacks its end is claimed",
        (OLD_JOURNAL,),
        backup(tail_tests.test_submit_is_refused_if_kafka_has_ids_of_an_unknown_attempt),
        1,
        1,
    ),
    Mutant(
        "ids of attempts that the journal lacks are passed over",
        (NO_IDS,),
        backup(tail_tests.test_submit_is_refused_if_kafka_has_ids_of_an_unknown_attempt),
        1,
        1,
    ),
    Mutant(
        "offsets of checkpoints that the journal lacks are passed over",
        (NO_OFFSETS,),
        backup(tail_tests.test_submit_is_refused_if_kafka_has_offsets_of_an_unknown_checkpoint),
        1,
        1,
    ),
    Mutant(
        "ids of lost attempts stay open",
        (LOST_ATTEMPTS_OPEN,),
        backup(decided),
        1,
        1,
    ),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
