"""A job whose brokers belong to another Kafka cluster than its checkpoints."""

from __future__ import annotations

import pytest

from tests.commit.quiet import ProcedureRunner, manifest
from tests.commit.world import CLUSTER, JOB, RETRY_POLICY
from tidegate.checkpoint.manifest import manifest_path
from tidegate.commit.claim import claim_to_close
from tidegate.commit.cluster_check import is_other_cluster, refuse_manifest
from tidegate.commit.journal.claimed import ClaimedJournal
from tidegate.commit.journal.entries import Claim, Lost
from tidegate.commit.journal.state import decode_snapshot, encode_snapshot
from tidegate.errors import ClusterMismatchError, JournalLostError, RefusedError
from tidegate.ids import CheckpointId, JournalNumber

OTHER = "cluster-2"


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


def published_and_settled(quiet: ProcedureRunner, submission_id: str = "s1") -> ClaimedJournal:
    journal = quiet.claim(submission_id)
    quiet.recover(journal)
    quiet.publish(journal, 1, *quiet.prepared(journal, 0, 1))
    quiet.commit(journal)
    return journal


def claims(quiet: ProcedureRunner) -> list[Claim]:
    return [entry for entry in quiet.entries() if isinstance(entry, Claim)]


def test_a_claim_stores_its_kafka_cluster(quiet: ProcedureRunner) -> None:
    assert quiet.claim().state.kafka_cluster == CLUSTER
    (claim,) = claims(quiet)
    assert claim.kafka_cluster == CLUSTER
    assert not claim.restore_to_other_cluster


def test_a_checkpoint_of_another_cluster_is_refused_before_the_claim(
    quiet: ProcedureRunner,
) -> None:
    published_and_settled(quiet)
    before = quiet.kinds()
    quiet.world.cluster = OTHER
    with pytest.raises(RefusedError) as refused:
        quiet.claim("s2")
    for part in (CLUSTER, OTHER, "1-1", "'job'", "--restore none", "--restore-to-other-cluster"):
        assert part in str(refused.value)
    assert quiet.kinds() == before


def test_restore_of_an_older_checkpoint_of_another_cluster_is_refused(
    quiet: ProcedureRunner,
) -> None:
    """The newest publication is of this cluster, the older one is not."""
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    moved = quiet.claim("s2", restore_to_other_cluster=True)
    quiet.recover(moved)
    quiet.publish(moved, 1)
    with pytest.raises(RefusedError, match="Checkpoint 1-1 of job 'job' belongs to Kafka cluster"):
        quiet.claim("s3", restore="1-1")
    assert quiet.claim("s3").attempt == moved.attempt + 2


def test_without_state_a_job_starts_on_any_cluster(quiet: ProcedureRunner) -> None:
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    journal = quiet.claim("s2", restore="none")
    quiet.recover(journal)
    assert journal.state.kafka_cluster == OTHER
    assert not claims(quiet)[-1].restore_to_other_cluster


def test_consent_to_another_cluster_is_stored_and_holds_for_later_attempts(
    quiet: ProcedureRunner,
) -> None:
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    first = quiet.claim("s2", restore_to_other_cluster=True)
    assert claims(quiet)[-1].restore_to_other_cluster
    quiet.recover(first)
    second = quiet.claim("s2", restore_to_other_cluster=True)
    assert not claims(quiet)[-1].restore_to_other_cluster, "it counts once, for this cluster"
    assert second.state.moved_to == OTHER
    assert quiet.claim("s3").state.moved_to == OTHER, "nothing is published there yet"
    snapshot = decode_snapshot(encode_snapshot(second.state), "snapshot")
    assert snapshot.moved_to == OTHER


def test_consent_to_another_cluster_ends_with_a_publication_on_that_cluster(
    quiet: ProcedureRunner,
) -> None:
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    moved = quiet.claim("s2", restore_to_other_cluster=True)
    quiet.recover(moved)
    quiet.publish(moved, 1)
    assert moved.state.moved_to == ""
    old = manifest(moved, 2)
    assert not is_other_cluster(old, OTHER)
    assert is_other_cluster(old, CLUSTER)
    with pytest.raises(RefusedError, match=CLUSTER):
        refuse_manifest(old, moved.state, CLUSTER)


def test_consent_to_another_cluster_holds_again_if_its_publication_is_rolled_back(
    quiet: ProcedureRunner,
) -> None:
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    moved = quiet.claim("s2", restore_to_other_cluster=True)
    quiet.recover(moved)
    named = quiet.prepared(moved, 2, 3)
    quiet.publish(moved, 1, *named)
    quiet.world._abort_by_bumping(quiet.world.broker[named[1].transactional_id])
    again = quiet.claim("s2")
    assert quiet.recover(again).rolled_back == (CheckpointId(moved.attempt, 1),)
    point = again.restore_point("latest")
    assert point is not None
    assert point.checkpoint == CheckpointId.parse("1-1")
    assert again.state.moved_to == OTHER
    assert quiet.claim("s2").attempt > again.attempt


def test_consent_to_another_cluster_does_not_hold_for_a_third_cluster(
    quiet: ProcedureRunner,
) -> None:
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    quiet.claim("s2", restore_to_other_cluster=True)
    quiet.world.cluster = "cluster-3"
    with pytest.raises(ClusterMismatchError, match=r"cluster-2.*cluster-3"):
        quiet.claim("s2", restore_to_other_cluster=True)
    with pytest.raises(RefusedError, match=r"cluster-1.*cluster-3"):
        quiet.claim("s3")


def test_unpublished_submission_is_refused_on_another_cluster(quiet: ProcedureRunner) -> None:
    """Its first offsets are those of that cluster."""
    quiet.claim()
    quiet.world.cluster = OTHER
    with pytest.raises(ClusterMismatchError, match=f"{CLUSTER}.*{OTHER}"):
        quiet.claim()
    assert quiet.kinds() == ["Claim"]
    quiet.world.cluster = CLUSTER
    assert quiet.claim().attempt == 2


def test_move_to_another_cluster_is_refused_while_commits_are_pending(
    quiet: ProcedureRunner,
) -> None:
    refused_until_settled(quiet, "latest")


def test_start_without_state_is_refused_while_the_old_cluster_has_pending_commits(
    quiet: ProcedureRunner,
) -> None:
    refused_until_settled(quiet, "none")


def refused_until_settled(quiet: ProcedureRunner, restore: str) -> None:
    journal = quiet.claim()
    quiet.recover(journal)
    named = quiet.prepared(journal, 0, 1)
    quiet.publish(journal, 1, *named)
    before = quiet.kinds()
    quiet.world.cluster = OTHER
    with pytest.raises(RefusedError) as refused:
        quiet.claim("s2", restore=restore, restore_to_other_cluster=True)
    for part in (
        named[0].transactional_id,
        CLUSTER,
        OTHER,
        "start the job once",
        "--accept-data-loss",
    ):
        assert part in str(refused.value)
    assert quiet.kinds() == before

    quiet.world.cluster = CLUSTER  # the remedy: start it there once, and stop it
    settled = quiet.claim("s2")
    assert set(quiet.recover(settled).ended) == set(named)
    quiet.close(settled)
    quiet.world.cluster = OTHER
    moved = quiet.claim("s3", restore=restore, restore_to_other_cluster=True)
    assert quiet.recover(moved).abandoned == ()


@pytest.mark.parametrize("end", ["recover", "close"])
def test_accept_data_loss_records_transactions_of_the_old_cluster_as_lost(
    quiet: ProcedureRunner, end: str
) -> None:
    journal = quiet.claim()
    quiet.recover(journal)
    named = quiet.prepared(journal, 0, 1)
    quiet.publish(journal, 1, *named)
    quiet.world.cluster = OTHER
    moved = quiet.claim("s2", restore_to_other_cluster=True, accept_data_loss=True)
    if end == "recover":
        assert quiet.recover(moved).abandoned == named
        assert quiet.kinds()[-2:] == ["Lost", "LossAccepted"]
    else:
        quiet.close(moved)
        assert quiet.kinds()[-3:] == ["Lost", "LossAccepted", "Closed"]
    lost = next(entry for entry in quiet.entries() if isinstance(entry, Lost))
    assert lost.transactions == named
    assert f"on Kafka cluster {CLUSTER}" in lost.statement
    assert moved.state.pending_commits == ()
    assert quiet.claim("s3", restore="latest").state.moved_to == OTHER


def test_recovery_commits_transactions_even_if_the_manifest_is_damaged(
    quiet: ProcedureRunner,
) -> None:
    """The restore refuses it, after the recovery has committed what the journal names."""
    journal = quiet.claim()
    quiet.recover(journal)
    named = quiet.prepared(journal, 0, 1)
    quiet.publish(journal, 1, *named)
    path = manifest_path(journal.job, CheckpointId(journal.attempt, 1))
    quiet.world.store.objects[path] = b"torn"
    assert set(quiet.recover(quiet.claim()).ended) == set(named)


def test_claim_of_an_earlier_version_has_no_cluster_and_ends_the_cluster_consent(
    quiet: ProcedureRunner,
) -> None:
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    moved = quiet.claim("s2", restore_to_other_cluster=True)
    old = Claim(
        number=JournalNumber(moved.state.number + 1),
        nonce="n",
        previous=moved.state.nonce,
        journal_id=moved.journal_id,
        created_ms=0,
        submission_id="s2",
        restore="latest",
    )
    state = moved.state.after(old)
    assert (state.kafka_cluster, state.moved_to) == ("", "")


def test_claim_to_close_is_not_refused_for_a_checkpoint_of_another_cluster(
    quiet: ProcedureRunner,
) -> None:
    """Started without state on another cluster, then its code is broken: it must be closed."""
    published_and_settled(quiet)
    quiet.world.cluster = OTHER
    started = quiet.claim("s2", restore="none")
    journal = quiet.run(claim_to_close(JOB, submission_id="s2", retry_policy=RETRY_POLICY))
    assert journal is not None
    assert journal.attempt == started.attempt + 1
    quiet.close(journal)


def test_claim_to_close_raises_journal_lost_if_the_journal_lacks_the_claimed_attempt(
    quiet: ProcedureRunner,
) -> None:
    quiet.claim("s1")
    with pytest.raises(JournalLostError, match="ends with attempt 1"):
        quiet.run(
            claim_to_close(JOB, submission_id="s1", claimed_attempt=4, retry_policy=RETRY_POLICY)
        )
    assert quiet.run(claim_to_close(JOB, submission_id="s0", retry_policy=RETRY_POLICY)) is None
