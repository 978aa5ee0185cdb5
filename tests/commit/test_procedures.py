"""Publishing, ending, settling, recovering and closing in a quiet world, step by step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.commit.masters import Tasks
from tests.commit.quiet import ProcedureRunner, manifest
from tests.commit.world import JOB, RETRY_POLICY
from tidegate.checkpoint.manifest import Manifest
from tidegate.commit import effects
from tidegate.commit.committer import commit
from tidegate.commit.confirmation import CONFIRMATION_S
from tidegate.commit.effects import Effect
from tidegate.commit.fencing import fence_zombies
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import (
    SNAPSHOT_INTERVAL,
    snapshot_path,
)
from tidegate.commit.publish import publish
from tidegate.commit.settle import settle
from tidegate.errors import (
    DataLossError,
    FencedError,
    KafkaError,
    KafkaUnavailableError,
    OutcomeUnknownError,
    SourceChangedError,
    StorageError,
    TransactionError,
)
from tidegate.ids import TransactionalId, Uid
from tidegate.ports.blobs import CreateResult
from tidegate.ports.kafka import EndTxnResult, TransactionState
from tidegate.protocol.subtask_snapshot import (
    PreparedTransaction,
    SourceSplit,
)


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


# --- publish, commit, settle --------------------------------------------------------------------


def test_checkpoint_is_published_then_committed_then_settled(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0, 1)
    published = quiet.publish(journal, 1, *named)
    assert published.pending == named == journal.uncommitted
    assert published.reusable == ()
    assert not quiet.world.output
    assert quiet.commit(journal) == named
    assert quiet.world.output == {0: 1, 1: 1}
    assert quiet.kinds() == ["Claim", "Publication", "Settled"]
    assert quiet.commit(journal) == (), "nothing is left to do"


def test_publication_lists_unended_transactions_and_releases_ended_ones(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    first = quiet.prepared(journal, 0)
    second = quiet.prepared(journal, 1)
    quiet.publish(journal, 1, *first)
    published = quiet.publish(journal, 2, *second)
    assert published.pending == (*first, *second), "also what no acknowledgement holds any more"
    result = quiet.run(commit(journal, retry_policy=RETRY_POLICY))
    journal.ended.update(result.ended)
    published = quiet.publish(journal, 3, *first, *second)
    assert published.pending == ()
    assert set(published.reusable) == {*first, *second}
    assert journal.ended == {*first, *second}, "subtasks have not shown that they know"
    quiet.publish(journal, 4)
    assert journal.ended == set()


def test_commit_ends_the_oldest_transaction_first_and_waits_until_all_are_complete(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = (*quiet.prepared(journal, 0), *quiet.prepared(journal, 1))
    quiet.publish(journal, 1, *named)
    quiet.asked.clear()
    committing = [TransactionState.PREPARE_COMMIT] * 3

    def slowly(effect: Effect) -> Any:
        if isinstance(effect, effects.Describe) and committing:
            found = quiet.world.describe(effect.transaction.transactional_id)
            assert found is not None
            return msgspec.structs.replace(found, state=committing.pop())
        return NotImplemented

    result = quiet.run(commit(journal, retry_policy=RETRY_POLICY), slowly)
    assert result.ended == named
    sent = [e.transaction for e in quiet.asked if isinstance(e, effects.EndTransaction)]
    assert sent == list(named), "what is committing is not ended again"
    described = [e for e in quiet.asked if isinstance(e, effects.Describe)]
    assert len(described) == 5


def test_end_txn_that_was_answered_without_effect_is_sent_again(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0)
    quiet.publish(journal, 1, *named)
    answers = [EndTxnResult.ACCEPTED, EndTxnResult.RETRY, EndTxnResult.REFUSED]

    def without_effect(effect: Effect) -> Any:
        if isinstance(effect, effects.EndTransaction) and answers:
            return answers.pop()
        return NotImplemented

    result = quiet.run(commit(journal, retry_policy=RETRY_POLICY), without_effect)
    assert result.ended == named
    assert quiet.world.output == {0: 1}


def test_commit_raises_the_cause_if_transactions_can_not_be_ended(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1, *quiet.prepared(journal, 0))

    def forbidden(effect: Effect) -> Any:
        if isinstance(effect, effects.EndTransaction):
            return EndTxnResult.NOT_AUTHORISED
        return NotImplemented

    def away(effect: Effect) -> Any:
        if isinstance(effect, effects.EndTransaction | effects.Describe):
            raise KafkaUnavailableError("no coordinator")
        return NotImplemented

    def useless(effect: Effect) -> Any:
        return EndTxnResult.RETRY if isinstance(effect, effects.EndTransaction) else NotImplemented

    with pytest.raises(KafkaError, match="does not authorise ending transaction"):
        quiet.run(commit(journal, retry_policy=RETRY_POLICY), forbidden)
    with pytest.raises(KafkaUnavailableError, match="no coordinator"):
        quiet.run(commit(journal, retry_policy=RETRY_POLICY), away)
    with pytest.raises(KafkaUnavailableError, match="did not complete 1 published transaction in"):
        quiet.run(commit(journal, retry_policy=RETRY_POLICY), useless)
    assert quiet.kinds() == ["Claim", "Publication"], "nothing was said lost"


def test_publication_is_refused_if_a_prepared_transaction_is_not_open(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0, 1)
    quiet.world.init(named[1].transactional_id)
    with pytest.raises(TransactionError, match=r"is not open any more.*Nothing is lost"):
        quiet.publish(journal, 1, *named)
    assert quiet.kinds() == ["Claim"]


def with_topic_ids(journal: ClaimedJournal, *topic_ids: str) -> Manifest:
    """A manifest with a position in each of the topics t0, t1, ..."""
    splits = tuple(
        SourceSplit(source=Uid("in"), topic=f"t{n}", partition=0, offset=7, topic_id=each)
        for n, each in enumerate(topic_ids)
    )
    made = manifest(journal, 1)
    part = msgspec.structs.replace(made.subtasks[0], splits=splits)
    return msgspec.structs.replace(made, subtasks=(part, *made.subtasks[1:]))


def test_publication_asks_for_all_known_topic_ids_in_one_request(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    quiet.asked.clear()
    ids = {"t0": "id-0", "t1": "id-1", "t2": "id-2"}
    made = with_topic_ids(journal, "id-0", "id-1", "")

    def answer(effect: Effect) -> Any:
        return ids if isinstance(effect, effects.TopicIds) else NotImplemented

    quiet.run(publish(journal, made, (), describe_retry=RETRY_POLICY), answer)
    (asked,) = [effect for effect in quiet.asked if isinstance(effect, effects.TopicIds)]
    assert asked.topics == {"t0", "t1"}, "the id of t2 is not known"
    assert quiet.kinds() == ["Claim", "Publication"]


def test_publication_is_refused_if_a_source_topic_was_recreated(quiet: ProcedureRunner) -> None:
    description = not_published(quiet, {"t0": "id-0", "t1": "id-new"})
    assert "'t1' (topic id id-1) is offset 7, and" in description
    assert "with id id-new" in description


def test_publication_is_refused_if_a_source_topic_was_deleted(quiet: ProcedureRunner) -> None:
    description = not_published(quiet, {"t0": "id-0"})
    assert "'t1' (topic id id-1) is offset 7, and Kafka has no topic of this name" in description


def not_published(quiet: ProcedureRunner, now_has: dict[str, str]) -> str:
    """The refusal to publish a checkpoint of t0 and t1 whose topics have had the ids `now_has` for
    the whole wait.
    """
    journal = quiet.claim()

    def answer(effect: Effect) -> Any:
        return now_has if isinstance(effect, effects.TopicIds) else NotImplemented

    before_s = quiet.world.time_s
    with pytest.raises(SourceChangedError) as refused:
        quiet.run(publish(journal, with_topic_ids(journal, "id-0", "id-1"), ()), answer)
    assert quiet.kinds() == ["Claim"]
    assert quiet.world.time_s - before_s >= CONFIRMATION_S
    return str(refused.value)


def test_publication_succeeds_if_a_broker_reports_stale_topic_ids_only_briefly(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    answers: list[dict[str, str]] = [{}, {"t0": "id-old"}, {}, {"t0": "id-0"}]

    def answer(effect: Effect) -> Any:
        return answers.pop(0) if isinstance(effect, effects.TopicIds) else NotImplemented

    quiet.run(publish(journal, with_topic_ids(journal, "id-0"), ()), answer)
    assert quiet.kinds() == ["Claim", "Publication"]


def test_publication_fails_while_kafka_is_unavailable_and_the_next_one_succeeds(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0)

    def away(effect: Effect) -> Any:
        if isinstance(effect, effects.Describe):
            raise KafkaUnavailableError("away")
        return NotImplemented

    with pytest.raises(KafkaUnavailableError):
        quiet.run(
            publish(journal, manifest(journal, 1, named), named, describe_retry=RETRY_POLICY), away
        )
    assert quiet.publish(journal, 2, *named).pending == named


def test_publication_stops_asking_kafka_once_its_attempt_is_over(quiet: ProcedureRunner) -> None:
    """The next recovery waits behind the publication: Kafka may refuse both the same question."""
    journal = quiet.claim()
    named = quiet.prepared(journal, 0)
    asked: list[Effect] = []

    def away(effect: Effect) -> Any:
        if isinstance(effect, effects.Describe):
            asked.append(effect)
            raise KafkaUnavailableError("away")
        return NotImplemented

    published = manifest(journal, 1, named)
    with pytest.raises(KafkaUnavailableError):
        quiet.run(publish(journal, published, named, is_canceled=lambda: len(asked) == 3), away)
    assert len(asked) == 3
    assert quiet.kinds() == ["Claim"]


def test_publish_settle_and_close_are_fenced_after_a_newer_claim(quiet: ProcedureRunner) -> None:
    older = quiet.claim()
    named = quiet.prepared(older, 0)
    quiet.publish(older, 1, *named)
    result = quiet.run(commit(older, retry_policy=RETRY_POLICY))
    quiet.claim()
    with pytest.raises(FencedError, match="fenced by attempt 3"):
        quiet.publish(older, 2)
    with pytest.raises(FencedError, match="Attempt 1 of job 'job' was fenced"):
        quiet.run(settle(older, result))
    with pytest.raises(FencedError):
        quiet.close(older)


def test_failed_journal_snapshot_fails_no_publication_and_is_written_with_the_next_one(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    for counter in range(1, SNAPSHOT_INTERVAL - 1):
        quiet.publish(journal, counter)

    def no_snapshot(effect: Effect) -> Any:
        if isinstance(effect, effects.WriteObject) and effect.path.endswith(".hint"):
            raise StorageError("full")
        return NotImplemented

    last = manifest(journal, SNAPSHOT_INTERVAL - 1)
    assert quiet.run(publish(journal, last, ()), no_snapshot).number == SNAPSHOT_INTERVAL
    assert snapshot_path(JOB, SNAPSHOT_INTERVAL) not in quiet.world.store.objects
    quiet.publish(journal, SNAPSHOT_INTERVAL)
    assert snapshot_path(JOB, SNAPSHOT_INTERVAL + 1) in quiet.world.store.objects


# --- recovery -----------------------------------------------------------------------------------


def test_recovery_commits_listed_transactions_then_settles_then_fences(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    named = quiet.prepared(older, 0, 1)
    quiet.publish(older, 1, *named)
    tasks = Tasks(quiet.world, older.attempt, older.journal_id, 2)
    tasks.taken = {txn.transactional_id for txn in named}
    tasks.write_one()
    unnamed = next(iter(tasks.open.values()))[0]
    newer = quiet.claim()
    quiet.asked.clear()
    recovered = quiet.recover(newer)
    assert recovered.ended == named
    assert recovered.fenced == (unnamed,), "nothing follows under the complete ones"
    assert quiet.world.output == {0: 1, 1: 1}
    kinds = [type(effect).__name__ for effect in quiet.asked]
    assert kinds.index("EndTransaction") < kinds.index("CreateEntry") < kinds.index("Fence")
    assert kinds[:2] == ["Describe", "Describe"], "everything is read before anything is done"
    assert not quiet.world.write(unnamed, 0, 3), "the zombie is fenced"


def test_recovery_ends_no_transaction_of_a_settled_publication(quiet: ProcedureRunner) -> None:
    older = quiet.claim()
    quiet.publish(older, 1, *quiet.prepared(older, 0))
    quiet.commit(older)
    quiet.world.broker.clear()
    newer = quiet.claim()
    assert quiet.recover(newer).ended == ()
    assert quiet.kinds() == ["Claim", "Publication", "Settled", "Claim"]


def test_recovery_retries_while_kafka_is_unavailable(quiet: ProcedureRunner) -> None:
    older = quiet.claim()
    named = quiet.prepared(older, 0, 1)
    quiet.publish(older, 1, *named)
    newer = quiet.claim()
    away = [True] * 4

    def answer(effect: Effect) -> Any:
        kafka = effects.Describe | effects.ListTransactions | effects.Fence
        if isinstance(effect, kafka) and away:
            away.pop()
            raise KafkaUnavailableError("away")
        return NotImplemented

    assert quiet.recover(newer, answer).ended == named


def lose_one(quiet: ProcedureRunner) -> tuple[ClaimedJournal, tuple[PreparedTransaction, ...]]:
    older = quiet.claim()
    named = quiet.prepared(older, 0, 1)
    quiet.publish(older, 1, *named)
    quiet.world.init(named[0].transactional_id)
    return quiet.claim(), named


def test_loss_is_recorded_after_the_other_transactions_are_committed(
    quiet: ProcedureRunner,
) -> None:
    newer, named = lose_one(quiet)
    with pytest.raises(DataLossError) as caught:
        quiet.recover(newer)
    assert quiet.world.output == {1: 1}
    assert quiet.kinds() == ["Claim", "Publication", "Claim", "Lost"]
    for part in (
        "checkpoint 1-1",
        named[0].transactional_id,
        "of sink totals",
        "--accept-data-loss",
    ):
        assert part in str(caught.value)
    assert named[1].transactional_id not in str(caught.value)


def test_recovery_that_finds_a_loss_still_fences_other_open_transactions(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    named = quiet.prepared(older, 0, 1)
    quiet.publish(older, 1, *named)
    unnamed = TransactionalId(f"{named[0].transactional_id[:-1]}9")
    assert quiet.world.write(unnamed, quiet.world.init(unnamed).epoch, 2)
    quiet.world.init(named[0].transactional_id)
    newer = quiet.claim()
    with pytest.raises(DataLossError):
        quiet.recover(newer)
    descriptions = quiet.world.describe(unnamed)
    assert descriptions is not None
    assert descriptions.state is TransactionState.EMPTY


def test_job_with_a_recorded_loss_can_be_closed_and_the_loss_remains(
    quiet: ProcedureRunner,
) -> None:
    newer, _ = lose_one(quiet)
    with pytest.raises(DataLossError):
        quiet.recover(newer)
    quiet.close(newer)
    assert quiet.kinds()[-2:] == ["Lost", "Closed"], "stated once"
    with pytest.raises(DataLossError):
        quiet.claim("s2")
    assert quiet.claim("s2", accept_data_loss=True).state_before_claim.accepted


def test_a_loss_stays_until_a_new_submit_accepts_it(quiet: ProcedureRunner) -> None:
    newer, named = lose_one(quiet)
    with pytest.raises(DataLossError) as caught:
        quiet.recover(newer)
    with pytest.raises(DataLossError, match=r"has lost output: checkpoint 1-1"):
        quiet.claim("s2")
    with pytest.raises(DataLossError):
        quiet.claim("s1", accept_data_loss=True)
    assert len(quiet.entries()) == 4
    accepted = quiet.claim("s2", accept_data_loss=True)
    assert quiet.kinds()[4:] == ["LossAccepted", "Claim"]
    recovered = quiet.recover(accepted)
    assert recovered.ended == ()
    assert recovered.fenced == (named[0].transactional_id,), "the other one is complete"
    assert accepted.restore_point("latest") == accepted.state.recent_checkpoints[-1]
    assert str(caught.value)


def test_accepting_a_loss_does_not_accept_a_later_loss(quiet: ProcedureRunner) -> None:
    newer, _ = lose_one(quiet)
    with pytest.raises(DataLossError):
        quiet.recover(newer)
    journal = quiet.claim("s2", accept_data_loss=True)
    quiet.recover(journal)
    named = quiet.prepared(journal, 2)
    quiet.publish(journal, 1, *named)
    quiet.world.init(named[0].transactional_id)
    with pytest.raises(TransactionError):
        quiet.commit(journal)
    with pytest.raises(DataLossError):
        quiet.recover(quiet.claim("s2", accept_data_loss=True))
    with pytest.raises(DataLossError):
        quiet.claim("s2", accept_data_loss=True)


def test_running_attempt_records_a_loss_after_it_committed_the_other_transaction(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0, 1)
    quiet.publish(journal, 1, *named)
    quiet.world.init(named[0].transactional_id)
    with pytest.raises(DataLossError, match="checkpoint 1-1"):
        quiet.commit(journal)
    assert quiet.kinds() == ["Claim", "Publication", "Lost"]
    assert quiet.world.output == {1: 1}


def test_final_checkpoint_is_known_to_a_restart_and_not_to_a_new_submission(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0)
    quiet.publish(journal, 1, *named, final=True)
    successor = quiet.claim()
    assert successor.final_checkpoint_published
    quiet.recover(successor)
    quiet.close(successor)
    assert quiet.world.output == {0: 1}
    new = quiet.claim("s2")
    assert not new.final_checkpoint_published, "a new submit goes on from there"
    assert not quiet.claim("s2").final_checkpoint_published, "and so does its restart"


def test_close_settles_and_fences_its_own_ids_and_ends_the_journal(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0)
    quiet.publish(journal, 1, *named)
    open_ = quiet.prepared(journal, 1)
    quiet.close(journal)
    assert quiet.world.output == {0: 1}
    assert quiet.world.broker[open_[0].transactional_id].state is TransactionState.EMPTY
    assert quiet.kinds() == ["Claim", "Publication", "Settled", "Closed"]


def test_close_is_refused_while_the_outcome_of_a_publication_is_unknown(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    named = quiet.prepared(journal, 0)
    published = manifest(journal, 1, named)

    def written_and_never_confirmed(effect: Effect) -> Any:
        if isinstance(effect, effects.CreateEntry):
            quiet.world.store.land(effect.path, effect.data)
            return CreateResult.UNKNOWN
        return NotImplemented

    with pytest.raises(OutcomeUnknownError):
        quiet.run(
            publish(
                journal, published, named, describe_retry=RETRY_POLICY, storage_retry=RETRY_POLICY
            ),
            written_and_never_confirmed,
        )
    asked = len(quiet.asked)
    with pytest.raises(OutcomeUnknownError, match="claimed again"):
        quiet.close(journal)
    assert len(quiet.asked) == asked, "nothing is fenced or ended"
    quiet.close(quiet.claim())
    assert quiet.world.output == {0: 1}
    assert quiet.kinds() == ["Claim", "Publication", "Claim", "Settled", "Closed"]


def test_sweep_fences_only_the_id_that_a_zombie_opened_after_recovery(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    newer = quiet.claim()
    quiet.recover(newer)
    zombie, own = quiet.prepared(older, 0), quiet.prepared(newer, 1)
    assert quiet.run(fence_zombies(newer, retry_policy=RETRY_POLICY)) == (
        zombie[0].transactional_id,
    )
    assert quiet.run(fence_zombies(newer, retry_policy=RETRY_POLICY)) == ()
    assert quiet.run(fence_zombies(older, retry_policy=RETRY_POLICY)) == ()
    assert quiet.world.broker[own[0].transactional_id].state is TransactionState.ONGOING


def test_ids_of_swept_attempts_are_not_fenced_by_later_attempts(quiet: ProcedureRunner) -> None:
    first = quiet.claim()
    quiet.prepared(first, 0)
    second = quiet.claim()
    assert len(quiet.recover(second).fenced) == 1
    quiet.publish(second, 1)
    third = quiet.claim()
    assert quiet.recover(third).fenced == ()
