"""The judge of sinks that are written at least once, given histories that are wrong: it must name
each of them, and no right one; and what simulated runs find with it.
"""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from tests.mutants.planting import Edit, Mutant, planted
from tests.simulator.kafka.log import PartitionLog, Record
from tests.simulator.oracle import Oracle
from tests.simulator.pipelines import OUT_A, OUT_B, Result, Sided, Totals
from tests.simulator.plan import Plan
from tests.simulator.result_groups import Violation
from tests.simulator.run import run_seed
from tests.simulator.tests.test_oracle import BY_PIPELINE, SOURCE, events, sided, totals
from tidegate.dataplane.sinks.delivery import NonTransactionalDelivery
from tidegate.stream_elements import TopicPartition

SEEDS = range(400)
RUNS = 24
UNFLUSHED = Edit(NonTransactionalDelivery.flush, "if self._flushes or final:", "if final:")


class Job:
    """Four events of a key, and attempts that write what a test says."""

    def __init__(self) -> None:
        given = events("a", "a", "a", "a")
        self.results = totals(given)
        self.oracle = Oracle(replace(BY_PIPELINE[Totals], plain=frozenset({OUT_A})))
        self.log = PartitionLog(TopicPartition(OUT_A, 0), 1 << 20)
        for offset, event in enumerate(given):
            self.oracle.expect(SOURCE, event, offset)
        self.start_attempt(1, 0)

    def start_attempt(self, attempt: int, offset: int) -> None:
        self.oracle.plain.start_attempt(attempt, {SOURCE: offset})
        self.oracle.plain.record_producer((attempt, 0), attempt)

    def write(self, attempt: int, *results: Result) -> None:
        for result in results:
            record = Record(msgspec.json.encode(result), b"a", (), 0)
            sequence = sum(each.span.producer == (attempt, 0) for each in self.log.everything())
            self.log.append(attempt, 0, sequence, [record], is_open=None)
        self.oracle.check_partition(self.log)

    def publish(self, attempt: int, offset: int) -> None:
        self.oracle.plain.cut(attempt, {SOURCE: offset})


def test_at_least_once_sink_may_repeat_records_after_the_restored_checkpoint() -> None:
    job = Job()
    first, second, third, fourth = job.results
    job.write(1, first, second)
    job.publish(1, 1)
    job.start_attempt(2, 1)
    job.write(2, second, third)
    job.write(1, third)  # a zombie, which no process can stop
    job.start_attempt(3, 1)
    job.write(3, second, third, fourth)
    job.publish(3, 4)
    job.oracle.complete()
    assert (job.oracle.visible, job.oracle.missing) == (4, 0)


def test_duplicate_without_a_recovery_is_reported() -> None:
    job = Job()
    with pytest.raises(Violation, match="attempt 1 has written in-a-0:0 of key a after in-a-0:0"):
        job.write(1, job.results[0], job.results[0])


def test_records_of_a_key_in_the_wrong_order_are_reported() -> None:
    job = Job()
    with pytest.raises(Violation, match="has written in-a-0:1 of key a after in-a-0:2"):
        job.write(1, job.results[0], job.results[2], job.results[1])


def test_repeated_record_from_before_the_restored_checkpoint_is_reported() -> None:
    job = Job()
    job.write(1, *job.results[:2])
    job.publish(1, 2)
    job.start_attempt(2, 2)
    with pytest.raises(Violation, match="in-a-0:1 of key a, from before what it has restored"):
        job.write(2, job.results[1])


def test_checkpoint_is_reported_if_only_an_earlier_attempt_wrote_its_output() -> None:
    """Output that an earlier attempt has written there belongs to a state that is gone."""
    job = Job()
    job.write(1, *job.results[:2])
    job.start_attempt(2, 0)
    job.write(2, job.results[0])
    job.publish(2, 1)
    with pytest.raises(Violation, match=r"a checkpoint is behind in-a-0:1 \(key a\), and lacks it"):
        job.publish(2, 2)


def test_output_gap_is_reported_only_once_a_checkpoint_covers_it() -> None:
    job = Job()
    job.write(1, job.results[0], job.results[2])
    job.publish(1, 1)
    with pytest.raises(Violation, match="a checkpoint is behind in-a-0:1"):
        job.publish(1, 3)


def test_count_that_does_not_match_the_offsets_is_reported() -> None:
    job = Job()
    job.start_attempt(2, 1)
    wrong = msgspec.structs.replace(job.results[1], count=3)
    job.write(2, wrong)
    with pytest.raises(Violation, match="covers 2 of group a, and out-a has counted 1"):
        job.publish(2, 2)
    job.start_attempt(3, 1)
    with pytest.raises(Violation, match="count 1 of group a for a second time"):
        job.write(3, msgspec.structs.replace(job.results[1], count=1))


def test_total_that_does_not_add_up_is_reported() -> None:
    job = Job()
    with pytest.raises(Violation, match="says count 1 and total 7 of group a, where 1 and 1"):
        job.write(1, msgspec.structs.replace(job.results[0], total=7))


def test_unwritten_result_is_reported_as_missing_at_the_end() -> None:
    job = Job()
    job.write(1, *job.results[:3])
    with pytest.raises(Violation, match="1 results are missing at the end, the first of them in-a"):
        job.oracle.complete()


def test_records_after_a_manually_restored_checkpoint_are_expected_again() -> None:
    job = Job()
    job.write(1, *job.results)
    job.oracle.rewind({SOURCE: 4}, {SOURCE: 2})
    job.start_attempt(2, 2)
    assert job.oracle.missing == 2
    job.write(2, *job.results[2:])
    job.oracle.complete()


def test_record_of_an_unknown_producer_or_event_is_reported() -> None:
    job = Job()
    with pytest.raises(Violation, match="of a producer that no slot has made"):
        job.write(7, job.results[0])
    job = Job()
    with pytest.raises(Violation, match="in-a-0:9 of key a, which no event has caused"):
        job.write(1, msgspec.structs.replace(job.results[0], name="in-a-0:9"))


def test_two_sinks_that_share_a_count_may_be_written_in_either_order() -> None:
    given = events("a", "a")
    (even,), (odd,) = sided(given)
    oracle = Oracle(replace(BY_PIPELINE[Sided], plain=frozenset({OUT_A, OUT_B})))
    for offset, event in enumerate(given):
        oracle.expect(SOURCE, event, offset)
    oracle.plain.start_attempt(1, {})
    oracle.plain.record_producer((1, 0), 1)
    for sink, result in ((OUT_A, even), (OUT_B, odd)):
        log = PartitionLog(TopicPartition(sink, 0), 1 << 20)
        record = Record(msgspec.json.encode(result), b"a", (), 0)
        log.append(1, 0, 0, [record], is_open=None)
        oracle.check_at_least_once_sinks([log])
    oracle.plain.cut(1, {SOURCE: 2})
    oracle.complete()


def plain_runs() -> list[int]:
    plans = {seed: Plan.drawn(random.Random(f"{seed}/plan")) for seed in SEEDS}
    return [seed for seed, plan in plans.items() if plan.shape.plain]


def test_some_runs_have_sinks_that_are_written_at_least_once() -> None:
    assert 0.1 < len(plain_runs()) / len(SEEDS) < 0.3


@pytest.mark.seeds
def test_simulation_finds_an_at_least_once_sink_that_does_not_flush_at_a_barrier() -> None:
    with planted(Mutant("a plain producer is not flushed", (UNFLUSHED,), run_seed, RUNS, 1)):
        violations = [run_seed(seed).violation or "" for seed in plain_runs()[:RUNS]]
    assert sum("and lacks it in" in each for each in violations) > 1
