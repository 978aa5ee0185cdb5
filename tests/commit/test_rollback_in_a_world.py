"""Rolling back among zombies, late messages, timeouts and intruders; what breaks without a rule.

The world is that of `test_protocol_in_a_world.py`, with brokers that abort what is published. A
loss may be reported only if some output of the publication is visible. No record is ever visible
twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from tests.commit.masters import simulate
from tests.commit.mutants import Patch, caught
from tidegate.commit.decisions import is_complete
from tidegate.commit.effects import Procedure, fence
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import Lost, RolledBack
from tidegate.commit.journal.state import JournalState, _rolled_back
from tidegate.ports.kafka import TransactionDescription
from tidegate.protocol.subtask_snapshot import PreparedTransaction

pytestmark = pytest.mark.seeds
aborting = partial(simulate, timeouts=4)
intruded = partial(simulate, timeouts=1, intruders=2)

Descriptions = Mapping[PreparedTransaction, TransactionDescription | None]


def test_transaction_aborted_by_the_broker_is_replayed_or_its_loss_is_recorded() -> None:
    seen: Counter[str] = Counter()
    for seed in range(200):
        kinds = Counter(type(entry).__name__ for entry in aborting(seed).entries())
        seen += Counter(kinds.keys())
        seen["two in a run"] += kinds[RolledBack.__name__] > 1
    assert seen[RolledBack.__name__] > 60, "the world must be rough enough"
    assert seen[Lost.__name__] > 60
    assert seen["two in a run"] > 20


def test_intruder_causes_a_replay_or_a_recorded_loss_and_never_duplicates() -> None:
    losses = sum(
        any(isinstance(entry, Lost) for entry in intruded(seed).entries()) for seed in range(200)
    )
    assert losses > 50


# --- mutants ------------------------------------------------------------------------------------


def without_proof(
    introduced: Sequence[PreparedTransaction],
    *,
    lost: bool,
    descriptions: Descriptions,
    **known: Any,
) -> bool:
    """A mutant of `may_roll_back` that takes every transaction for aborted of which Kafka knows
    nothing any more.
    """
    committed = any(
        is_complete(txn, descriptions[txn]) or txn in known["ended"] for txn in introduced
    )
    return lost and not known["irrevocable"] and not committed


def test_mutant_publication_is_rolled_back_after_a_commit(patch: Patch) -> None:
    def whatever(
        introduced: Sequence[PreparedTransaction],
        *,
        lost: bool,
        descriptions: Descriptions,
        **known: Any,
    ) -> bool:
        del introduced, descriptions
        return lost and not known["irrevocable"]

    patch("rollback.may_roll_back", whatever)
    assert "twice in the output" in str(caught(aborting))


def test_mutant_rollback_fences_open_transactions_instead_of_ending_them(patch: Patch) -> None:
    def fenced(open_: Sequence[PreparedTransaction], *, commit: bool) -> Procedure[None]:
        assert not commit
        for transaction in open_:
            yield from fence(transaction.transactional_id)

    patch("rollback.send_end_txn", fenced)
    assert "nothing of the publication is visible" in str(caught(aborting))
    # A fence also hides a commit. Where less is aborted, more is committed before the fence.
    patch("rollback.may_roll_back", without_proof)
    assert "twice in the output" in str(caught(partial(simulate, timeouts=2)))


def test_mutant_transaction_fenced_by_an_intruder_is_taken_for_aborted(patch: Patch) -> None:
    patch("rollback.may_roll_back", without_proof)
    assert "twice in the output" in str(caught(intruded))


def test_mutant_rollback_does_not_abort_open_transactions_first(patch: Patch) -> None:
    patch("rollback.is_as_prepared", lambda txn, description: False)
    caught(aborting, saying="committed before its publication")


def test_mutant_rollback_lists_transactions_that_the_rolled_back_publication_did_not(
    patch: Patch,
) -> None:
    def names_all(state: JournalState) -> JournalState:
        return msgspec.structs.replace(_rolled_back(state), still_pending=None, settled=False)

    patch("journal.state._rolled_back", names_all)
    caught(aborting)


def test_mutant_running_attempt_records_a_loss_that_could_be_rolled_back(patch: Patch) -> None:
    def no(journal: ClaimedJournal) -> bool:
        del journal
        return False

    patch("settle.can_still_roll_back", no)
    assert "nothing of the publication is visible" in str(caught(aborting))


def test_mutant_nothing_is_ever_rolled_back(patch: Patch) -> None:
    patch("rollback.may_roll_back", lambda *args, **kwargs: False)
    assert "nothing of the publication is visible" in str(caught(aborting))
