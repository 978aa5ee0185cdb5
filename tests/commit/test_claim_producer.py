"""The claim id: when it takes the place of the list of all ids, and that it hides no lost tail."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from tests.commit.quiet import Answer, ProcedureRunner
from tests.commit.test_lost_tail import Backup
from tests.commit.world import JOB, RETRY_POLICY
from tidegate.commit import effects
from tidegate.commit.claim import claim, claim_to_close
from tidegate.commit.effects import Effect
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import (
    Claim,
    ClaimProducer,
    decode_entry,
    encode_entry,
)
from tidegate.commit.transactional_ids import claim_id, parse_transactional_id
from tidegate.errors import (
    JournalLostError,
    KafkaNotAuthorisedError,
    KafkaUnavailableError,
    RefusedError,
)
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionState


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


@pytest.fixture
def backup() -> Backup:
    return Backup()


def run_claim(
    quiet: ProcedureRunner, answer: Answer | None = None, submission_id: str = "s1", **more: Any
) -> ClaimedJournal:
    quiet.asked.clear()
    procedure = claim(JOB, submission_id=submission_id, retry_policy=RETRY_POLICY, **more)
    return quiet.run(procedure, answer)


def asked(quiet: ProcedureRunner, kind: type[Effect]) -> int:
    return sum(isinstance(effect, kind) for effect in quiet.asked)


def listed(quiet: ProcedureRunner) -> bool:
    return asked(quiet, effects.ListTransactions) > 0


def claim_ids(quiet: ProcedureRunner, journal: ClaimedJournal) -> TransactionalId:
    return claim_id(JOB, journal.journal_id)


def proves(journal: ClaimedJournal) -> bool:
    return journal.state.producer is not None and journal.state.producer.proves


def expire(quiet: ProcedureRunner, journal: ClaimedJournal) -> None:
    del quiet.world.broker[claim_ids(quiet, journal)]


# --- what is asked ------------------------------------------------------------------------------


def test_first_claim_of_a_journal_lists_and_the_next_first_claims_do_not(
    quiet: ProcedureRunner,
) -> None:
    run_claim(quiet)
    assert listed(quiet), "the name may be used by another journal"
    for submission in ("s1", "s2", "s3"):
        journal = run_claim(quiet, submission_id=submission)
        assert not listed(quiet)
        assert asked(quiet, effects.Fence) == 1
        assert asked(quiet, effects.Describe) == 2
        quiet.prepared(journal, 0, 1)


def test_claims_of_one_process_initialise_the_id_and_ask_nothing_else(
    quiet: ProcedureRunner,
) -> None:
    run_claim(quiet, process_id="p")
    for _ in range(3):
        journal = run_claim(quiet, process_id="p", repeated=True)
        assert not listed(quiet)
        assert asked(quiet, effects.Fence) == asked(quiet, effects.Describe) == 1
        found = quiet.world.broker[claim_ids(quiet, journal)]
        assert journal.state.producer == ClaimProducer(
            cluster_id=quiet.world.cluster,
            producer_id=found.producer_id,
            epoch=found.epoch,
            proves=True,
        )
    run_claim(quiet, process_id="q")
    assert not listed(quiet)


def test_claim_id_is_initialised_after_every_check_and_before_the_entry(
    quiet: ProcedureRunner,
) -> None:
    run_claim(quiet)
    before = dict(quiet.world.broker)
    with pytest.raises(RefusedError):
        run_claim(quiet, submission_id="s2", restore="7-7")
    assert quiet.world.broker == before, "a refused submit changes nothing"
    run_claim(quiet, submission_id="s2")
    kinds = [type(effect) for effect in quiet.asked]
    assert kinds.index(effects.Fence) < kinds.index(effects.CreateEntry)


def test_claim_id_is_no_id_of_an_attempt_and_is_never_fenced(quiet: ProcedureRunner) -> None:
    journal = run_claim(quiet)
    name = claim_ids(quiet, journal)
    assert name.startswith("tidegate.job.")
    assert parse_transactional_id(name) is None
    assert quiet.world.broker[name].state is TransactionState.EMPTY
    newer = run_claim(quiet)
    epoch = quiet.world.broker[name].epoch
    assert quiet.recover(newer).fenced == ()
    quiet.close(newer)
    assert quiet.world.broker[name].epoch == epoch


# --- when nothing is proven ---------------------------------------------------------------------


def assert_that_two_claims_list(quiet: ProcedureRunner) -> None:
    """The first of them cannot prove. The second one finds its producer, lists, and proves."""
    for proves in (False, True):
        producer = run_claim(quiet).state.producer
        assert producer is not None
        assert producer.proves is proves
        assert listed(quiet)
    run_claim(quiet)
    assert not listed(quiet)


def test_claims_list_after_the_claim_id_expired(quiet: ProcedureRunner) -> None:
    expire(quiet, run_claim(quiet))
    assert_that_two_claims_list(quiet)


def test_claims_list_after_another_process_initialised_the_id_and_wrote_no_claim(
    quiet: ProcedureRunner,
) -> None:
    """It died between the two, or its InitProducerId arrives late."""
    quiet.world.init(claim_ids(quiet, run_claim(quiet)))
    assert_that_two_claims_list(quiet)


@pytest.mark.parametrize("change", [{"cluster_id": "another"}, {"producer_id": 99}, {"epoch": 99}])
def test_claim_lists_if_the_newest_claim_has_another_producer(
    quiet: ProcedureRunner, change: dict[str, Any]
) -> None:
    """A producer id and an epoch may be the same on another cluster."""
    journal = run_claim(quiet)
    producer = journal.state.producer
    assert producer is not None
    found = quiet.world.broker[claim_ids(quiet, journal)]
    found.producer_id = change.get("producer_id", found.producer_id)
    found.epoch = change.get("epoch", found.epoch)
    quiet.world.cluster = change.get("cluster_id", quiet.world.cluster)
    run_claim(quiet, submission_id="s2")
    assert listed(quiet)


def test_claim_lists_if_the_newest_claim_is_of_an_earlier_version(quiet: ProcedureRunner) -> None:
    without: dict[str, bytes] = {}

    def earlier(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            entry = decode_entry(effect.data, effect.path)
            assert isinstance(entry, Claim)
            without[effect.path] = encode_entry(msgspec.structs.replace(entry, producer=None))
        if isinstance(effect, effects.ReadObject) and effect.path in without:
            return None if effect.path not in quiet.world.store.objects else NotImplemented
        return NotImplemented

    run_claim(quiet, earlier)
    quiet.world.store.objects.update(without)
    assert_that_two_claims_list(quiet)


def test_claim_lists_if_the_principal_may_not_describe_the_claim_id(
    quiet: ProcedureRunner,
) -> None:
    run_claim(quiet)

    def refused(effect: Effect) -> Any:
        if isinstance(effect, effects.Describe):
            raise KafkaNotAuthorisedError("grant DESCRIBE")
        return NotImplemented

    run_claim(quiet, refused, opens_transactions=False)
    assert listed(quiet)
    assert asked(quiet, effects.Describe) == 1, "the right may be missing for ever"


def test_requests_about_the_claim_id_are_repeated_while_kafka_is_away(
    quiet: ProcedureRunner,
) -> None:
    run_claim(quiet)
    away = [True] * 4

    def answer(effect: Effect) -> Any:
        if away and isinstance(effect, effects.Describe | effects.Fence):
            away.pop()
            raise KafkaUnavailableError("away")
        return NotImplemented

    producer = run_claim(quiet, answer).state.producer
    assert producer is not None
    assert producer.proves
    assert not listed(quiet)
    assert not away


# --- attempts without ids -----------------------------------------------------------------------


def test_claim_of_an_attempt_without_ids_keeps_the_producer_of_the_claim_before(
    quiet: ProcedureRunner,
) -> None:
    first = run_claim(quiet)
    without = run_claim(quiet, opens_transactions=False)
    assert asked(quiet, effects.Fence) == 0
    assert without.state.producer == first.state.producer
    run_claim(quiet)
    assert not listed(quiet)


def test_claim_to_close_initialises_nothing(quiet: ProcedureRunner) -> None:
    first = run_claim(quiet)
    quiet.asked.clear()
    closing = quiet.run(claim_to_close(JOB, submission_id="s1", retry_policy=RETRY_POLICY))
    assert closing is not None
    assert closing.state.producer == first.state.producer
    assert asked(quiet, effects.Fence) == asked(quiet, effects.Describe) == 0


# --- other processes at the same time -------------------------------------------------------------


def meanwhile(kind: type[Effect], act: Any, nth: int = 1) -> Answer:
    """Runs `act` before the nth effect of this kind."""
    left = [nth]

    def answer(effect: Effect) -> Any:
        if isinstance(effect, kind):
            left[0] -= 1
            if left[0] == 0:
                act()
        return NotImplemented

    return answer


def test_claim_that_lost_a_race_initialises_again_and_proves_nothing(
    quiet: ProcedureRunner,
) -> None:
    run_claim(quiet)
    other = meanwhile(effects.CreateEntry, lambda: quiet.claim("s2"))
    quiet.asked.clear()
    journal = quiet.run(claim(JOB, submission_id="s3", retry_policy=RETRY_POLICY), other)
    assert journal.attempt == 3
    assert not proves(journal)
    assert proves(run_claim(quiet))
    assert listed(quiet)


def test_claim_proves_nothing_if_another_process_initialised_the_id_meanwhile(
    quiet: ProcedureRunner,
) -> None:
    """Otherwise a claim that follows a journal that was put back would hide what it lacks."""
    journal = run_claim(quiet)
    zombie = meanwhile(effects.Fence, lambda: quiet.world.init(claim_ids(quiet, journal)))
    assert not proves(run_claim(quiet, zombie))


def test_claims_of_a_process_prove_nothing_after_another_initialisation(
    quiet: ProcedureRunner,
) -> None:
    journal = run_claim(quiet, process_id="p")
    quiet.world.init(claim_ids(quiet, journal))
    for _ in range(2):
        assert not proves(run_claim(quiet, process_id="p", repeated=True))


def test_journal_that_is_put_back_during_a_claim_is_noticed_by_the_next_one(
    backup: Backup,
) -> None:
    quiet = backup.quiet

    def three_attempts_and_put_back() -> None:
        for record in (3, 4, 5):
            quiet.prepared(quiet.claim("s2"), record)
        backup.put_back()

    late = meanwhile(effects.Fence, three_attempts_and_put_back)
    quiet.run(claim(JOB, submission_id="s3", retry_policy=RETRY_POLICY), late)
    with pytest.raises(RefusedError, match="Its newest entries are missing"):
        quiet.claim("s4")


def test_journal_that_is_put_back_between_the_list_and_the_read_is_noticed_by_the_next_claim(
    backup: Backup,
) -> None:
    """Kafka has ids of the lost attempts, but the list came before them."""
    quiet = backup.quiet
    quiet.claim("s2")
    newer = quiet.claim("s2")
    expire(quiet, newer)
    newer = quiet.claim("s2")

    has_listed: list[bool] = []

    def late(effect: Effect) -> Any:
        if isinstance(effect, effects.ListTransactions):
            has_listed.append(True)
        elif has_listed == [True]:
            has_listed.append(True)
            quiet.prepared(newer, 3)
            backup.put_back()
        return NotImplemented

    assert not proves(run_claim(quiet, late, submission_id="s3"))
    with pytest.raises(RefusedError, match="Its newest entries are missing"):
        quiet.claim("s4")


def test_journal_that_shrinks_after_the_proof_is_reported_as_lost(backup: Backup) -> None:
    """The claim id has proven that no attempt is newer than the newest one of then, not that of an
    older copy.
    """
    quiet = backup.quiet
    backup.publish(quiet.claim("s2"), 1, 3, 4)
    reads = [0]

    def loses_a_race(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry) and not reads[0]:
            quiet.claim("s5")
            reads[0] = 1
        elif isinstance(effect, effects.ListObjects) and reads[0]:
            reads[0] += 1
            if reads[0] == 3:  # the first one looks for a snapshot after the entry that it found
                backup.put_back()
        return NotImplemented

    with pytest.raises(JournalLostError, match="older copy"):
        quiet.run(claim(JOB, submission_id="s3", retry_policy=RETRY_POLICY), loses_a_race)


# --- it decides as the list would ---------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_claim_decides_as_if_it_had_listed_all_ids(seed: int) -> None:
    """Commands and waves claim, with and without ids. Ids expire, and a claim dies after it has
    initialised the claim id. In the end the journal is put back to an older copy.
    """
    rng = random.Random(seed)
    quiet = ProcedureRunner()
    process, copies = 0, []
    newest: ClaimedJournal | None = None
    world = quiet.world
    for _ in range(rng.randrange(2, 12)):
        repeated = newest is not None and rng.random() < 0.4
        process += not repeated
        newest = quiet.claim(
            process_id=f"p{process}", repeated=repeated, opens_transactions=rng.random() < 0.8
        )
        if newest.state.producer != newest.state_before_claim.producer and rng.random() < 0.8:
            quiet.prepared(newest, *range(rng.randrange(1, 3)))
        copies.append(dict(world.store.objects))
        if rng.random() < 0.1:
            world.init(claim_ids(quiet, newest))
        expired = rng.sample(sorted(world.broker), rng.choice([0, 0, min(1, len(world.broker))]))
        if rng.random() < 0.1:
            expired.append(claim_ids(quiet, newest))
        for each in expired:
            world.broker.pop(each, None)
    world.store.objects = dict(rng.choice(copies))
    outcomes: list[int | str] = []
    for proves in (True, False):
        objects, broker = dict(world.store.objects), dict(world.broker)
        answer = None if proves else unknown_claim_id
        try:
            outcomes.append(run_claim(quiet, answer, submission_id="last").attempt)
        except RefusedError as refused:
            outcomes.append(str(refused))
        world.store.objects, world.broker = objects, broker
    assert outcomes[0] == outcomes[1]


def unknown_claim_id(effect: Effect) -> Any:
    """An answer by which the claim lists."""
    return None if isinstance(effect, effects.Describe) else NotImplemented
