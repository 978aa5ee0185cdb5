"""The commit protocol under zombies, lost answers and late messages; and what breaks without a
rule.

Goal: exactly once whatever the interleaving. Method: `world.py` runs JobMasters against each other
on one seed; a failure prints it, and `simulate(seed)` repeats it. Each mutant below lacks one rule
of the protocol and must be caught: that is the proof that the checks can fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.commit.masters import run_without_faults, simulate
from tests.commit.mutants import Patch, caught, with_rules
from tidegate.commit.committer import end_transactions
from tidegate.commit.decisions import Decision, decide, may_fence
from tidegate.commit.effects import MonotonicTime, Procedure, create_entry, list_transactions
from tidegate.commit.fencing import fence_older_attempts
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import AnyEntry, Claim, encode_entry, entry_path
from tidegate.commit.recover import recover
from tidegate.commit.retry import RetryPolicy
from tidegate.errors import StorageError
from tidegate.ids import Attempt, JobName
from tidegate.ports.blobs import CreateResult
from tidegate.protocol.subtask_snapshot import PreparedTransaction


def blocks(count: int) -> list[Any]:
    """Ranges of seeds; `make check` runs the first one."""
    return [
        pytest.param(
            range(first, first + 75), marks=pytest.mark.seeds if first else (), id=str(first)
        )
        for first in range(0, count, 75)
    ]


@pytest.mark.parametrize("seeds", blocks(600))
def test_output_is_exactly_once_under_random_faults(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("seeds", blocks(150))
def test_timed_out_transaction_is_replayed_or_its_loss_is_recorded(seeds: range) -> None:
    losses = 0
    for seed in seeds:
        world = simulate(seed, timeouts=2)
        losses += any("DataLossError" in line for line in world.log)
    assert losses > 5, "the world must be rough enough to lose something"


def test_without_faults_no_attempt_ever_fails() -> None:
    for seed in range(100):
        run_without_faults(seed)


# --- mutants ------------------------------------------------------------------------------------


def _place_without_looking(
    job: JobName, entry: AnyEntry, retry_policy: RetryPolicy
) -> Procedure[AnyEntry]:
    del retry_policy
    yield from create_entry(entry_path(job, entry.number), encode_entry(entry))
    return entry


def test_mutant_a_publication_does_not_look_for_a_newer_claim(patch: Patch) -> None:
    patch("journal.claimed.write_entry", _place_without_looking)
    caught(simulate)


def test_mutant_claim_does_not_read_back_the_entry_at_its_number(patch: Patch) -> None:
    def no_read_back(job: JobName, introduced: Claim) -> Procedure[None]:
        del job, introduced
        yield MonotonicTime()

    patch("claim.write_entry", _place_without_looking)
    patch("claim._read_back", no_read_back)
    caught(simulate)


def test_mutant_transactions_are_ended_before_the_publication() -> None:
    found = caught(with_rules(end_only_after_publication=False))
    assert "committed before its publication" in str(found)


def _fencing_everything_older(*args: Any, **kwargs: Any) -> bool:
    return may_fence(*args, **{**kwargs, "pending": (), "fenced_before": Attempt(0)})


def test_mutant_recovery_fences_listed_ids_before_it_ends_their_transactions(patch: Patch) -> None:
    def fence_first(journal: ClaimedJournal, **retry_policy: RetryPolicy) -> Procedure[None]:
        yield from fence_older_attempts(journal, retry_policy=retry_policy["fence_retry"])
        yield from recover(journal, **retry_policy)

    patch("fencing.may_fence", _fencing_everything_older)
    assert "false alarm" in str(caught(with_rules(recover=fence_first)))


def test_mutant_recovery_fences_committed_ids_before_they_are_settled(patch: Patch) -> None:
    def unsettled(journal: ClaimedJournal, **retry_policy: RetryPolicy) -> Procedure[None]:
        yield from end_transactions(
            journal.uncommitted, settled=False, retry_policy=retry_policy["commit_retry"]
        )
        yield from fence_older_attempts(journal, retry_policy=retry_policy["fence_retry"])

    patch("fencing.may_fence", _fencing_everything_older)
    patch("fencing.list_transactions", lambda prefix, **_: list_transactions(prefix))
    assert "false alarm" in str(caught(with_rules(recover=unsettled)))


def test_mutant_a_sweep_fences_newer_attempts(patch: Patch) -> None:
    def older_and_newer(*args: Any, **kwargs: Any) -> bool:
        parts = args[0]
        return (
            parts is not None
            and parts.attempt != kwargs["attempt"]
            and may_fence(*args, **{**kwargs, "attempt": Attempt(10**6)})
        )

    patch("fencing.may_fence", older_and_newer)
    assert "false alarm" in str(caught(simulate))


def test_mutant_publication_does_not_carry_unended_transactions(patch: Patch) -> None:
    def list_transactions(
        journal: ClaimedJournal, transactions: Sequence[PreparedTransaction]
    ) -> tuple[PreparedTransaction, ...]:
        return tuple(txn for txn in transactions if txn not in journal.state.pending_commits)

    patch("publish.list_transactions", list_transactions)
    caught(with_rules(keep_until_committed=False))


def test_mutant_failed_checkpoint_drops_its_prepared_transactions() -> None:
    assert "output" in str(caught(with_rules(keep_prepared_of_failed_checkpoints=False)))


def test_mutant_an_unknown_create_is_taken_for_a_failure(patch: Patch) -> None:
    def place(job: JobName, entry: AnyEntry, retry_policy: RetryPolicy) -> Procedure[AnyEntry]:
        del retry_policy
        outcome = yield from create_entry(entry_path(job, entry.number), encode_entry(entry))
        if outcome is not CreateResult.CREATED:
            raise StorageError("not created, it seems")
        return entry

    patch("journal.claimed.write_entry", place)
    found = caught(with_rules(keep_transactions_of_unknown_publications=False))
    assert "false alarm" in str(found)


def test_mutant_transactional_id_is_reused_once_committed_and_not_settled() -> None:
    assert "false alarm" in str(caught(with_rules(free_ids_only_when_settled=False)))


def test_mutant_publication_lists_transactions_that_were_seen_ended(patch: Patch) -> None:
    def list_transactions(
        journal: ClaimedJournal, transactions: Sequence[PreparedTransaction]
    ) -> tuple[PreparedTransaction, ...]:
        return tuple(dict.fromkeys((*journal.uncommitted, *transactions)))

    patch("publish.list_transactions", list_transactions)
    assert "TransactionError" in str(caught(run_without_faults))


def test_mutant_lost_transaction_is_taken_for_committed(patch: Patch) -> None:
    def silent(pending: Sequence[PreparedTransaction], **descriptions: Any) -> Decision:
        found = decide(pending, **descriptions)
        return Decision(end=found.end, done=(*found.done, *found.lost), lost=())

    for module in ("committer", "recover"):
        patch(f"{module}.decide", silent)
        patch(
            f"{module}.is_complete",
            lambda txn, description: description is None or description.epoch != txn.epoch,
        )
    found = caught(partial(simulate, timeouts=2))
    assert "output" in str(found) or "stuck" in str(found)


def test_mutant_nothing_is_fenced(patch: Patch) -> None:
    patch("fencing.may_fence", lambda *args, **kwargs: False)
    assert "stall" in str(caught(simulate))


def test_simulated_run_stores_journal_and_manifests_and_is_repeatable() -> None:
    """The world's own checks stand on decoding the journal: see that there is something in it."""
    world = simulate(3)
    kinds = {path.split("/")[1] for path in world.store.objects}
    assert kinds == {"journal", "manifests"}
    assert sum(world.output.values()) == len(world.output)
    assert partial(simulate, 3)().log == world.log, "one seed is one run"
