"""Bugs in the claim id: it seems to prove that no attempt is missing, although one is."""

from __future__ import annotations

import pytest

from tests.commit import test_claim_producer as claim_tests
from tests.commit.quiet import ProcedureRunner
from tests.commit.test_lost_tail import Backup
from tests.mutants.finders import backfills, once, quiet, simulator
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tidegate.commit.claim import _claim_producer, _refuse
from tidegate.commit.claim_producer import _is_current, initialise, read_with_attempts

NOT_INITIALISED = Edit(
    initialise,
    "    yield from retry_request(partial(fence, claim_id(job, journal_id)), FENCE_RETRY)\n",
    "",
)
WAVES_DO_NOT = Edit(
    _claim_producer,
    "if not request.opens_transactions:",
    "if request.repeated or not request.opens_transactions:",
)
UNKNOWN_PROVES = Edit(_is_current, "found is not None and", "found is None or")
ANY_PRODUCER = Edit(
    _is_current,
    "(cluster, found.producer_id, found.epoch) == (\n"
    "        producer.cluster_id,\n"
    "        producer.producer_id,\n",
    "(cluster, found.epoch) == (\n        producer.cluster_id,\n",
)
ANY_CLUSTER = Edit(
    _is_current,
    "(cluster, found.producer_id, found.epoch) == (\n        producer.cluster_id,\n",
    "(found.producer_id, found.epoch) == (\n",
)
ANY_EPOCH = Edit(_is_current, "        producer.epoch,\n", "        found.epoch,\n")
UNPROVEN_PROVES = Edit(read_with_attempts, " and producer.proves", "")
WAVES_PROVE = Edit(
    initialise, "sure = before.proves or before == known.listed_after", "sure = True"
)
OTHERS_NOT_NOTICED = Edit(initialise, " and _is_current(following, known.cluster, now)", "")
PROOF_FORGOTTEN = Edit(
    _refuse,
    "written = max(request.claimed_attempt, request.known.newest_proven)",
    "written = request.claimed_attempt",
)


def other_producer(made: ProcedureRunner) -> None:
    """`test_claim_producer.test_claim_lists_if_the_newest_claim_has_another_producer`"""
    claim_tests.test_claim_lists_if_the_newest_claim_has_another_producer(made, {"producer_id": 99})


def other_epoch(made: ProcedureRunner) -> None:
    """`test_claim_producer.test_claim_lists_if_the_newest_claim_has_another_producer`"""
    claim_tests.test_claim_lists_if_the_newest_claim_has_another_producer(made, {"epoch": 99})


def other_cluster(made: ProcedureRunner) -> None:
    """`test_claim_producer.test_claim_lists_if_the_newest_claim_has_another_producer`"""
    claim_tests.test_claim_lists_if_the_newest_claim_has_another_producer(
        made, {"cluster_id": "another"}
    )


MUTANTS = [
    Mutant(
        "a claim does not initialise the claim id",
        (NOT_INITIALISED,),
        simulator,
        10,
        1,
    ),
    Mutant(
        "claims of waves do not initialise the claim id",
        (WAVES_DO_NOT,),
        backfills,
        10,
        1,
        "waves do not initialise",
    ),
    Mutant(
        "claims of waves do not initialise the claim id",
        (WAVES_DO_NOT,),
        quiet(claim_tests.test_claims_of_one_process_initialise_the_id_and_ask_nothing_else),
        1,
        1,
        "waves do not initialise",
    ),
    Mutant(
        "any epoch of the claim id proves",
        (ANY_EPOCH,),
        quiet(other_epoch),
        1,
        1,
    ),
    Mutant(
        "an expired claim id proves",
        (UNKNOWN_PROVES,),
        quiet(claim_tests.test_claims_list_after_the_claim_id_expired),
        1,
        1,
        "an expired claim id proves",
    ),
    Mutant(
        "the producer id of the claim id is not compared",
        (ANY_PRODUCER,),
        quiet(other_producer),
        1,
        1,
        "the producer id is not compared",
    ),
    Mutant(
        "the cluster of the claim id is not compared",
        (ANY_CLUSTER,),
        quiet(other_cluster),
        1,
        1,
        "the cluster is not compared",
    ),
    Mutant(
        "a claim that does not prove is taken for one that does",
        (UNPROVEN_PROVES,),
        once(
            claim_tests.test_journal_that_is_put_back_during_a_claim_is_noticed_by_the_next_one,
            Backup,
        ),
        1,
        1,
    ),
    Mutant(
        "a wave's claim proves although that of its command does not",
        (WAVES_PROVE,),
        quiet(claim_tests.test_claims_of_a_process_prove_nothing_after_another_initialisation),
        1,
        1,
    ),
    Mutant(
        "a claim proves although another process has initialised the claim id",
        (OTHERS_NOT_NOTICED,),
        once(
            claim_tests.test_journal_that_is_put_back_during_a_claim_is_noticed_by_the_next_one,
            Backup,
        ),
        1,
        1,
        "other initialisations are not noticed",
    ),
    Mutant(
        "a claim that lost a race forgets what it has proven",
        (PROOF_FORGOTTEN,),
        once(
            claim_tests.test_journal_that_shrinks_after_the_proof_is_reported_as_lost,
            Backup,
        ),
        1,
        1,
        "a repeated try forgets the proof",
    ),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
