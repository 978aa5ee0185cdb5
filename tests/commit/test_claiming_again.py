"""Claims of successive processes, and of two that take turns: which may claim, which are fenced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tidegate.commit.claim import claim
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.controlplane.journal.effect_runner import EffectRunner
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.storage.local import LocalStore
from tidegate.drivers.system import SystemEntropy
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import FencedError
from tidegate.ids import JobName, TransactionalId
from tidegate.ports.kafka import TransactionDescription, TransactionState

if TYPE_CHECKING:
    from tidegate.ports.kafka import TransactionAdmin


class Kafka:
    """Kafka, as far as a claim asks: it knows no ids, except the claim id."""

    def __init__(self) -> None:
        self._epoch = -1

    def cluster_id(self) -> str:
        return "c1"

    def list(
        self, prefix: str, *, unfinished: bool = False
    ) -> dict[TransactionalId, TransactionState]:
        return {}

    def fence(self, transactional_id: TransactionalId) -> None:
        self._epoch += 1

    def describe(self, transactional_id: TransactionalId) -> TransactionDescription:
        return TransactionDescription(
            state=TransactionState.EMPTY, producer_id=1, epoch=self._epoch, start_ms=-1
        )


class Process:
    """Claims as one JobMaster process does."""

    def __init__(self, name: str, folder: Path) -> None:
        log = cast("TransactionAdmin", Kafka())
        self._runner = EffectRunner(
            LocalStore(folder),
            log,
            SystemClock(),
            SystemThreads(),
            nonce=lambda: SystemEntropy().token_hex(8),
        )
        self._name, self._has_claimed = name, False

    def claim(self) -> ClaimedJournal:
        journal = self._runner.run(
            claim(
                JobName("a"), submission_id="s", process_id=self._name, repeated=self._has_claimed
            )
        )
        self._has_claimed = True
        return journal


def test_a_process_claims_again_after_its_own_claim(tmp_path: Path) -> None:
    process = Process("one", tmp_path)
    assert [process.claim().attempt for _ in range(3)] == [1, 2, 3]


def test_a_fresh_process_claims_after_another(tmp_path: Path) -> None:
    Process("one", tmp_path).claim()
    assert Process("two", tmp_path).claim().attempt == 2


def test_a_process_that_was_replaced_never_claims_again(tmp_path: Path) -> None:
    """Without this rule the two processes would fence each other without end."""
    zombie, successor = Process("one", tmp_path), Process("two", tmp_path)
    zombie.claim()
    successor.claim()
    for _ in range(2):
        with pytest.raises(FencedError):
            zombie.claim()
    assert successor.claim().attempt == 3
