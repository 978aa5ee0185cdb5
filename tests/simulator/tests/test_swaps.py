"""What is swapped between two lives of a job: how the oracle and the watch judge it, that runs have
swaps of each kind, and that a job which does not refuse them is found.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.drivers.kafka.clocks import SleepingClock
from tests.mutants.finders import seeds_with
from tests.simulator import swaps
from tests.simulator.kafka.cluster import FakeKafka
from tests.simulator.kafka.log import Record
from tests.simulator.pipelines import IN_A, Event
from tests.simulator.plan import Plan
from tests.simulator.run import run_seed
from tests.simulator.tests.history import History
from tests.simulator.trace import TraceEvent
from tidegate.stream_elements import TopicPartition

SEEDS = range(400)
TOPIC_PARTITION = TopicPartition(IN_A, 0)


@pytest.fixture
def history() -> History:
    """A checkpoint of one event, committed; a second event is not read yet."""
    made = History()
    made.claim()
    txn = made.prepare()
    number = made.publish(txn)
    made.end(txn)
    made.settle(number)
    made.event()
    return made


def new_event(history: History, number: int) -> Event:
    event = Event(f"{IN_A}-0:new.{number}", "a", 1)
    history.oracle.expect(TOPIC_PARTITION, event, number)
    return event


def test_events_of_a_recreated_topic_are_expected_after_a_start_without_state(
    history: History,
) -> None:
    history.oracle.recreated(IN_A)
    new_event(history, 0)
    assert history.oracle.missing == 1, "until then the old one is what the job has not written"
    history.claim("latest", "t")
    assert history.oracle.missing == 1
    history.claim("none", "u")
    assert history.oracle.missing == 1, "the new one; nobody can read the old one any more"
    history.event()
    assert history.oracle.missing == 2


def test_a_checkpoint_of_the_new_topic_covers_no_event_of_the_old_one(history: History) -> None:
    history.oracle.recreated(IN_A)
    new_event(history, 0)
    history.claim("none", "u")
    history.publish(counter=2, offsets=(1,))
    assert history.found == "a checkpoint is behind in-a-0:new.0 (key a), and lacks it in out-a"


def test_checker_reports_a_claim_or_publication_of_a_job_that_must_be_refused(
    history: History,
) -> None:
    history.watch.must_refuse, history.watch.may_claim = swaps.RECREATED, True
    history.claim("latest", "t")
    assert history.found == ""
    history.publish(counter=2)
    assert history.found == f"3-2 is published, although {swaps.RECREATED}".replace(
        "3-2", f"{history.attempt}-2"
    )
    other = History()
    other.watch.must_refuse = swaps.OTHER_CLUSTER
    other.claim()
    assert other.found == f"attempt 1 has begun, although {swaps.OTHER_CLUSTER}"


def test_mirror_cluster_has_all_records_but_no_group_offsets_or_transactional_ids() -> None:
    clock = SleepingClock()
    kafka = FakeKafka(clock)
    kafka.create_topic(IN_A, 1)
    kafka.log(TOPIC_PARTITION).append(1, 0, 0, [Record(b"v", None, (), 0)], is_open=None)
    clients = kafka.process("p", clock)
    log, reader = (
        clients.transaction_admin({}),
        clients.partition_reader({}, "g", with_end_of_partition=False),
    )
    clients.producer({}, "t", 60_000)  # type: ignore[arg-type]  # any text
    reader.commit({TOPIC_PARTITION: 1})
    kafka.run_due()
    admin, before = clients.kafka_admin({}), log.topic_ids([IN_A])
    assert (list(log.list("")), admin.committed("g", [TOPIC_PARTITION])) == (
        ["t"],
        {TOPIC_PARTITION: 1},
    )
    kafka.become_mirror("mirror")
    assert (log.list(""), admin.committed("g", [TOPIC_PARTITION])) == ({}, {TOPIC_PARTITION: None})
    assert (log.cluster_id(), admin.latest([TOPIC_PARTITION])) == ("mirror", {TOPIC_PARTITION: 1})
    assert log.topic_ids([IN_A]) != before


def plan(seed: int) -> Plan:
    return Plan.drawn(random.Random(f"{seed}/plan"))


def test_some_plans_have_swaps_of_each_kind_only_where_a_job_can_be_refused() -> None:
    plans = [plan(seed) for seed in SEEDS]
    some = [each for each in plans if any(each.swaps)]
    assert 0.1 < len(some) / len(plans) < 0.3
    kinds = Counter(swap.kind for each in some for swap in each.swaps if swap)
    assert kinds.keys() == set(swaps.KINDS)
    for each in plans:
        assert len(each.swaps) == len(each.job_runs)
        assert each.swaps[0] is None
        found = {swap.kind for swap in each.swaps if swap}
        assert not (found and each.fault_rates.blackout)
        if each.shape.plain == set(each.shape.sinks):
            assert not found & {swaps.EMPTY, swaps.OLDER}
        if each.retention or each.shape.plain:
            assert swaps.RECREATED not in found


@pytest.mark.seeds
@pytest.mark.parametrize("kind", swaps.KINDS)
def test_jobs_are_refused_after_a_swap_and_continue_once_it_is_corrected(kind: str) -> None:
    understood = 0

    def listen(told: TraceEvent) -> None:
        nonlocal understood
        understood += f"understood: {kind}" in str(told)

    for seed in seeds_with(kind, 20):
        outcome = run_seed(seed, listen=listen)
        assert outcome.violation is None, (
            f"python -m tests.simulator --seed {seed}: {outcome.violation}"
        )
    assert understood
