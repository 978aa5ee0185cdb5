"""`PipelineTest` as a job: subtasks, checkpoints, crashes at any parallelism, and the end.

Method: two steps with state behind each other, so that records cross two exchanges at a parallelism
above 1.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.testing.pipelines_under_test import (
    CALLS,
    OPENED,
    NoisyTotals,
    Order,
    Total,
    Totals,
    Unencodable,
)
from tidegate import PipelineError
from tidegate.drivers.memory.blob_store import MemoryBlobStore
from tidegate.errors import StateValueError, StorageError, UserCodeError
from tidegate.testing import PipelineTest, Setup

ORDERS = [Order(f"c{number % 7}", number, f"s{number % 3}") for number in range(40)]


def totals_of(setup: Setup) -> tuple[list[Order], list[Total]]:
    with PipelineTest(Totals, setup) as test:
        test.source(Totals.orders).push(*ORDERS)
        return test.sink(Totals.customers).read(), test.sink(Totals.shops).read()


def by_customer(orders: list[Order]) -> dict[str, list[Order]]:
    found: dict[str, list[Order]] = {}
    for order in orders:
        found.setdefault(order.customer, []).append(order)
    return found


@pytest.mark.parametrize(
    "setup",
    [Setup(parallelism=4), Setup(batch=1), Setup(parallelism=3, batch=3, seed=5), Setup(seed=9)],
)
def test_results_of_a_key_do_not_depend_on_the_setup(setup: Setup) -> None:
    assert by_customer(totals_of(setup)[0]) == by_customer(totals_of(Setup())[0])


def test_seed_draws_the_order_in_which_subtasks_write() -> None:
    orders = {tuple(totals_of(Setup(parallelism=4, batch=1, seed=seed))[0]) for seed in range(6)}
    assert len(orders) > 1
    again = {tuple(totals_of(Setup(parallelism=4, batch=1, seed=3))[0]) for _ in range(3)}
    assert len(again) == 1


def test_batch_is_the_most_records_that_a_source_emits_together() -> None:
    with PipelineTest(Totals, Setup(batch=15)) as test:
        test.source(Totals.orders).push(*ORDERS)
        assert test.counters.batches == 3
        assert test.counters.records_in == 40


def test_each_subtask_has_a_function_object_of_its_own() -> None:
    CALLS.clear()
    OPENED.clear()
    with PipelineTest(NoisyTotals, Setup(parallelism=3)):
        assert CALLS == ["open"] * 3
        assert len(OPENED) == 3
    assert CALLS == ["open"] * 3 + ["close"] * 3


def test_value_that_cannot_travel_fails_as_soon_as_it_may_go_to_another_slot() -> None:
    order = Order("ann", 1)
    with PipelineTest(Unencodable) as test:
        test.source(Unencodable.orders).push(order)
    with (
        PipelineTest(Unencodable, Setup(parallelism=4)) as test,
        pytest.raises(UserCodeError, match="surrogate"),
    ):
        test.source(Unencodable.orders).push(order, Order("bob", 1), Order("eve", 1))


@pytest.mark.parametrize("parallelism", [None, 1, 2, 4])
def test_crash_restores_the_checkpoint_and_reads_again_what_came_after_it(
    parallelism: int | None,
) -> None:
    with PipelineTest(Totals, Setup(parallelism=2)) as test:
        test.source(Totals.orders).push(Order("ann", 1), Order("bob", 10))
        test.checkpoint()
        test.source(Totals.orders, partition=1).push(Order("ann", 2))
        test.crash(parallelism=parallelism)
        test.source(Totals.orders).push(Order("ann", 4))
        results = test.sink(Totals.customers).read()
        assert by_customer(results) == {
            "ann": [Order("ann", 1), Order("ann", 3), Order("ann", 7)],
            "bob": [Order("bob", 10)],
        }
        assert test.sink(Totals.shops).read()[-1] == Total("s", 17)


def test_job_that_crashes_before_its_first_checkpoint_begins_again() -> None:
    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push(Order("ann", 1)).push(Order("ann", 2))
        test.crash().crash(parallelism=3)
        assert test.sink(Totals.customers).read() == [Order("ann", 1), Order("ann", 3)]


def test_crash_before_the_first_push_changes_nothing() -> None:
    with PipelineTest(Totals) as test:
        test.crash(parallelism=2)
        test.source(Totals.orders).push(Order("ann", 1))
        assert test.sink(Totals.customers).read() == [Order("ann", 1)]


def test_second_crash_restores_the_newest_checkpoint() -> None:
    with PipelineTest(Totals, Setup(parallelism=3)) as test:
        source = test.source(Totals.orders)
        for amount, parallelism in ((1, 2), (2, 4), (4, 1), (8, 3)):
            source.push(Order("ann", amount))
            test.checkpoint()
            source.push(Order("ann", 100))
            test.crash(parallelism=parallelism)
        assert [each.amount for each in test.sink(Totals.customers).read()] == [
            *(1, 101, 103, 203, 207, 307, 315, 415),
        ]


def test_results_that_were_read_before_a_crash_come_again_until_they_are_committed() -> None:
    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push(Order("ann", 1))
        assert test.sink(Totals.customers).read() == [Order("ann", 1)]
        test.checkpoint()
        test.source(Totals.orders).push(Order("ann", 2))
        assert test.sink(Totals.customers).read() == [Order("ann", 3)]
        test.crash()
        assert test.sink(Totals.customers).read() == [Order("ann", 3)]
        test.checkpoint().crash()
        assert test.sink(Totals.customers).read() == []


def test_crash_withdraws_what_came_after_committed_results_that_were_read() -> None:
    with PipelineTest(Totals) as test:
        source = test.source(Totals.orders).push(Order("ann", 1))
        test.checkpoint()
        assert test.sink(Totals.customers).read() == [Order("ann", 1)]
        source.push(Order("ann", 2))
        test.crash()
        assert test.sink(Totals.customers).read() == [Order("ann", 3)]


def test_sink_with_a_weaker_guarantee_keeps_its_results_in_a_crash() -> None:
    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push(Order("ann", 1))
        test.checkpoint()
        test.source(Totals.orders).push(Order("ann", 2))
        test.crash()
        copies = test.sink(Totals.copies).read()
        assert [each.amount for each in copies] == [1, 2, 2]
        assert [each.amount for each in test.sink(Totals.customers).read()] == [1, 3]


def test_job_continues_after_an_error_of_user_code_only_from_its_checkpoint() -> None:
    with PipelineTest(NoisyTotals) as test:
        source = test.source(NoisyTotals.orders)
        source.push(Order("ann", 1))
        test.checkpoint()
        with pytest.raises(UserCodeError, match="unlucky"):
            source.push(Order("ann", 13))
        with pytest.raises(UserCodeError, match="unlucky"):
            test.crash()


def test_value_that_cannot_be_stored_fails_with_its_record() -> None:
    with PipelineTest(NoisyTotals) as test:
        words = "State 'total' of step 'noisy' cannot be stored for key 'ann': it is a str, not"
        with pytest.raises(StateValueError, match=words):
            test.source(NoisyTotals.orders).push(Order("ann", 15))


def test_checkpoint_that_cannot_be_stored_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_store: MemoryBlobStore, path: str, _source: Path) -> None:
        raise StorageError(f"no room for {path}")

    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push(Order("ann", 1))
        monkeypatch.setattr(MemoryBlobStore, "put_file", refuse)
        with pytest.raises(StorageError, match="no room for totals/files/1/orders/0/"):
            test.checkpoint()


def test_skipped_records_are_read_over_and_counted_again_after_a_crash() -> None:
    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push_bytes(b"{").push(Order("ann", 1))
        test.crash()
        assert test.counters.skipped == 2
        assert test.sink(Totals.customers).read() == [Order("ann", 1)]


def test_crash_closes_and_opens_the_functions() -> None:
    CALLS.clear()
    with PipelineTest(NoisyTotals) as test:
        test.crash(parallelism=2)
        assert CALLS == ["open", "close", "open", "open"]


def test_stopped_job_processes_nothing_until_it_starts_again() -> None:
    with PipelineTest(Totals, Setup(parallelism=2)) as test:
        source = test.source(Totals.orders)
        source.push(Order("ann", 1))
        test.stop()
        for refused in (
            lambda: source.push(Order("ann", 2)),
            test.checkpoint,
            lambda: test.advance("1 s"),
            test.stop,
        ):
            with pytest.raises(PipelineError, match=r"has stopped this job.* crash\(\) starts it"):
                refused()
        test.crash(parallelism=3)
        source.push(Order("ann", 4))
        assert [each.amount for each in test.sink(Totals.customers).read()] == [1, 5]


def test_ended_partition_takes_no_record_and_the_others_do() -> None:
    with PipelineTest(Totals, Setup(parallelism=2)) as test:
        first, second = test.source(Totals.orders), test.source(Totals.orders, partition=1)
        first.push(Order("ann", 1)).end()
        with pytest.raises(PipelineError, match="has ended partition 0 of source 'orders'"):
            first.push(Order("ann", 2))
        second.push(Order("ann", 4))
        test.checkpoint()
        test.crash(parallelism=3)
        with pytest.raises(PipelineError, match="has ended partition 0 of source 'orders'"):
            first.push(Order("ann", 2))
        second.push(Order("ann", 8)).end()
        with pytest.raises(
            PipelineError, match=r"Source 'orders' has ended.*no partition 2\. Name"
        ):
            test.source(Totals.orders, partition=2)
        test.checkpoint().crash(parallelism=1)
        test.crash(parallelism=4)
        assert [each.amount for each in test.sink(Totals.customers).read()] == [1, 5, 13]


def test_end_of_the_last_partition_reaches_every_subtask_also_after_a_crash() -> None:
    def ended(test: Any) -> int:
        return len(test._run._attempt.ended)

    with PipelineTest(Totals, Setup(parallelism=2)) as test:
        first, second = test.source(Totals.orders), test.source(Totals.orders, partition=1)
        first.push(Order("ann", 1)).end()
        assert ended(test) == 0
        second.end()
        assert ended(test) == 6  # the source and two steps, in two slots each
        test.checkpoint().crash(parallelism=3)
        assert ended(test) == 9


def test_end_is_done_again_after_a_crash() -> None:
    with PipelineTest(Totals, Setup(parallelism=2)) as test:
        source = test.source(Totals.orders).push(Order("ann", 1))
        test.checkpoint()
        source.end()
        test.crash(parallelism=3)
        with pytest.raises(PipelineError, match="has ended partition 0"):
            source.push(Order("ann", 2))


def test_test_leaves_no_folder_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push(Order("ann", 1))
        assert list(tmp_path.iterdir()) == []  # a test without a checkpoint makes none
        test.checkpoint()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (Setup(batch=0), "batch=0: a batch has at least one record"),
        (Setup(parallelism=0), r"1 <= parallelism \(0\)"),
        (Setup(parallelism=1000), r"parallelism \(1000\) <= max_parallelism \(128\)"),
        (3, r"3 is no Setup\. Parameters of the pipeline are keywords"),
    ],
)
def test_setup_that_cannot_run_is_refused(setup: Setup, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        PipelineTest(Totals, setup)


def test_crash_at_an_impossible_parallelism_loses_nothing() -> None:
    with PipelineTest(Totals) as test:
        test.source(Totals.orders).push(Order("ann", 1))
        for parallelism in (0, 1000):
            with pytest.raises(PipelineError, match="must hold"):
                test.crash(parallelism=parallelism)
        assert test.sink(Totals.customers).read() == [Order("ann", 1)]


def test_negative_partition_is_refused() -> None:
    with (
        PipelineTest(Totals) as test,
        pytest.raises(PipelineError, match="partition=-1 is no part"),
    ):
        test.source(Totals.orders, partition=-1)
