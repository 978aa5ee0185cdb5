"""The oracle, given histories that are wrong: it must name each of them, and no right one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from tests.simulator.kafka.log import PartitionLog, Record
from tests.simulator.oracle import Oracle
from tests.simulator.pipelines import (
    IN_A,
    OUT_A,
    OUT_B,
    SHAPES,
    Event,
    FlatMapped,
    Result,
    Shape,
    Sided,
    Stateless,
    Totals,
    TwoSinks,
)
from tests.simulator.result_groups import Violation
from tidegate.stream_elements import TopicPartition

BY_PIPELINE = {shape.pipeline: shape for shape in SHAPES}


class History:
    """Two sinks of one partition each, and the oracle that looks at them."""

    def __init__(self, shape: Shape, *events: Event) -> None:
        self.oracle = Oracle(shape)
        self.logs = {
            topic: PartitionLog(TopicPartition(topic, 0), 1 << 20) for topic in (OUT_A, OUT_B)
        }
        self._producers = 0
        for offset, event in enumerate(events):
            self.oracle.expect(TopicPartition(IN_A, 0), event, offset)

    def written(self, *results: Result, sink: str = OUT_A) -> tuple[int, int]:
        """In a transaction of its own, which is open; its producer."""
        self._producers += 1
        producer = self._producers, 0
        records = [Record(msgspec.json.encode(each), b"key", (), 0) for each in results]
        self.logs[sink].append(*producer, 0, records, is_open=lambda: True)
        return producer

    def ended(self, producer: tuple[int, int], *, commit: bool, sink: str = OUT_A) -> None:
        self.logs[sink].mark(*producer, 0, commit=commit)
        self.oracle.check_partition(self.logs[sink])

    def committed(self, *results: Result, sink: str = OUT_A) -> None:
        self.ended(self.written(*results, sink=sink), commit=True, sink=sink)

    def lost(self, *results: Result, sink: str = OUT_A) -> None:
        """Aborted, and stated to be lost."""
        producer = self.written(*results, sink=sink)
        self.ended(producer, commit=False, sink=sink)
        self.oracle.accept_data_loss(self.logs.values(), {producer})


def events(*keys: str) -> list[Event]:
    """One of each key, of amounts 1, 2, 3, …"""
    return [
        Event(f"{IN_A}-0:{number}", key, number + 1)  # none is dropped by a filter for 5
        for number, key in enumerate(keys)
    ]


def plain(event: Event) -> Result:
    return Result(event.name, event.key, event.amount)


def totals(of: Sequence[Event]) -> list[Result]:
    """The results that `Totals` writes for these events."""
    counted: dict[str, tuple[int, int]] = {}
    results = []
    for event in of:
        count, total = counted.get(event.key, (0, 0))
        counted[event.key] = count, total = count + 1, total + event.amount
        results.append(Result(event.name, event.key, event.amount, event.key, count, total))
    return results


def test_oracle_accepts_a_correct_history_in_any_order_between_keys() -> None:
    first, second, third = given = events("a", "b", "a")
    history = History(BY_PIPELINE[Stateless], *given)
    history.committed(plain(second))
    history.committed(plain(first), plain(third))
    history.oracle.complete()
    assert (history.oracle.visible, history.oracle.missing) == (3, 0)


def test_oracle_ignores_records_of_open_and_aborted_transactions() -> None:
    (event,) = events("a")
    history = History(BY_PIPELINE[Stateless], event)
    history.ended(history.written(plain(event)), commit=False)
    producer = history.written(plain(event))
    history.oracle.check_partition(history.logs[OUT_A])
    assert history.oracle.visible == 0
    history.ended(producer, commit=True)
    history.oracle.complete()


def test_oracle_reports_a_record_that_is_missing_at_the_end() -> None:
    first, second = events("a", "b")
    history = History(BY_PIPELINE[Stateless], first, second)
    history.committed(plain(first))
    with pytest.raises(Violation, match=r"1 results are missing at the end.* in-a-0:1 \(key b"):
        history.oracle.complete()


def test_oracle_reports_a_record_that_is_skipped_before_a_visible_one_of_its_key() -> None:
    first, second = events("a", "a")
    history = History(BY_PIPELINE[Stateless], first, second)
    with pytest.raises(Violation, match=r"in-a-0:0 must come next: in-a-0:0 was skipped"):
        history.committed(plain(second))


def test_oracle_reports_a_record_that_is_visible_twice() -> None:
    first, second = events("a", "a")
    history = History(BY_PIPELINE[Stateless], first, second)
    history.committed(plain(first))
    with pytest.raises(Violation, match=r"in-a-0:0 stands there a second time"):
        history.committed(plain(first))


def test_oracle_reports_visible_records_that_a_recovery_writes_again() -> None:
    given = events("a", "a")
    history = History(BY_PIPELINE[Totals], *given)
    history.committed(*totals(given))
    with pytest.raises(Violation, match=r"nothing more must come next: in-a-0:0 stands there a se"):
        history.committed(*totals(given))


def test_oracle_reports_records_of_a_key_in_the_wrong_order() -> None:
    first, second = events("a", "a")
    history = History(BY_PIPELINE[Stateless], first, second)
    with pytest.raises(Violation, match="in-a-0:0 was skipped"):
        history.committed(plain(second), plain(first))


def test_oracle_reports_a_record_without_an_input_event() -> None:
    history = History(BY_PIPELINE[Stateless])
    with pytest.raises(Violation, match="nothing more must come next"):
        history.committed(plain(*events("a")))


def test_oracle_expects_the_results_of_each_sink_separately() -> None:
    given = events("a")
    history = History(BY_PIPELINE[TwoSinks], *given)
    history.committed(*totals(given))
    with pytest.raises(Violation, match="are missing at the end"):
        history.oracle.complete()
    history.committed(plain(*given), sink=OUT_B)
    history.oracle.complete()


def test_oracle_reports_that_one_of_two_results_of_an_event_is_missing() -> None:
    (event,) = events("a")
    history = History(BY_PIPELINE[FlatMapped], event)
    with pytest.raises(Violation, match="in-a-0:0/1 was skipped"):
        history.committed(Result(f"{event.name}/2", "a", event.amount))


@pytest.mark.parametrize(("count", "total"), [(3, 3), (2, 4), (1, 3)])
def test_oracle_reports_a_total_that_does_not_count_each_event_once(count: int, total: int) -> None:
    first, second = given = events("a", "a")
    history = History(BY_PIPELINE[Totals], *given)
    history.committed(*totals([first]))
    wrong = Result(second.name, "a", second.amount, "a", count, total)
    with pytest.raises(Violation, match=r"where 2 and 3 follow|for a second time"):
        history.committed(wrong)


def sided(given: Sequence[Event]) -> tuple[list[Result], list[Result]]:
    """The results that `Sided` writes: even amounts, and odd ones."""
    results = totals(given)
    return [r for r in results if r.amount % 2 == 0], [r for r in results if r.amount % 2]


def test_two_sinks_that_share_a_count_may_become_visible_in_either_order() -> None:
    given = events("a", "a", "a", "a")
    for first, second in ((OUT_A, OUT_B), (OUT_B, OUT_A)):
        even, odd = sided(given)
        history = History(BY_PIPELINE[Sided], *given)
        of = {OUT_A: even, OUT_B: odd}
        history.committed(*of[first], sink=first)
        history.committed(*of[second], sink=second)
        history.oracle.complete()


def test_oracle_reports_a_count_that_appears_in_both_sinks() -> None:
    given = events("a", "a")
    (even,), (odd,) = sided(given)
    history = History(BY_PIPELINE[Sided], *given)
    history.committed(odd, sink=OUT_B)
    with pytest.raises(Violation, match="count 1 of group a for a second time"):
        history.committed(msgspec.structs.replace(even, count=1), sink=OUT_A)


def test_oracle_accepts_counts_that_continue_after_a_recorded_loss() -> None:
    given = events("a", "a", "a")
    first, second, third = totals(given)
    history = History(BY_PIPELINE[Totals], *given)
    history.committed(first)
    history.lost(second)
    history.committed(third)
    history.oracle.complete()
    assert (history.oracle.visible, history.oracle.accepted_losses) == (2, 1)


def test_oracle_reports_a_skipped_record_that_a_recorded_loss_does_not_cover() -> None:
    given = events("a", "a", "a")
    _, second, third = totals(given)
    history = History(BY_PIPELINE[Totals], *given)
    history.lost(second)
    with pytest.raises(Violation, match="in-a-0:0 was skipped"):
        history.committed(third)


def test_oracle_reports_a_record_that_appears_after_its_recorded_loss() -> None:
    given = events("a", "a")
    first, second = totals(given)
    history = History(BY_PIPELINE[Totals], *given)
    history.lost(first)
    with pytest.raises(Violation, match="in-a-0:0 stands there a second time"):
        history.committed(first, second)


def test_oracle_reports_a_recorded_loss_of_a_visible_record() -> None:
    (event,) = events("a")
    history = History(BY_PIPELINE[Stateless], event)
    producer = history.written(plain(event))
    history.ended(producer, commit=True)
    with pytest.raises(Violation, match="was stated to be lost, and is visible"):
        history.oracle.accept_data_loss(history.logs.values(), {producer})


class Anew:
    """Four events of a key, three of them visible, and a job that begins again from the second.

    The last checkpoint covers the third.
    """

    def __init__(self, *, visible: int = 3) -> None:
        self.results = totals(given := events("a", "a", "a", "a"))
        self.history = History(BY_PIPELINE[Totals], *given)
        self.history.committed(*self.results[:visible])
        self.history.oracle.rewind({SOURCE: 3}, {SOURCE: 1})


SOURCE = TopicPartition(IN_A, 0)


@pytest.mark.parametrize("visible", [2, 3])
def test_oracle_expects_all_records_after_a_restored_checkpoint_once_more(visible: int) -> None:
    anew = Anew(visible=visible)
    anew.history.committed(*anew.results[visible:3])
    assert anew.history.oracle.missing == 3
    anew.history.committed(*anew.results[1:])
    anew.history.oracle.complete()


def test_oracle_reports_a_record_that_is_not_repeated_after_a_restored_checkpoint() -> None:
    anew = Anew()
    with pytest.raises(Violation, match=r"in-a-0:1 must come next: in-a-0:1 was skipped"):
        anew.history.committed(anew.results[3])
    with pytest.raises(Violation, match="3 results are missing at the end"):
        anew.history.oracle.complete()


def test_oracle_reports_a_repeated_record_from_before_the_restored_checkpoint() -> None:
    anew = Anew()
    with pytest.raises(Violation, match="in-a-0:0 stands there a second time"):
        anew.history.committed(anew.results[0])


def test_oracle_reports_state_that_did_not_go_back_with_the_offsets() -> None:
    anew = Anew()
    going_on = msgspec.structs.replace(anew.results[1], count=4, total=8)
    with pytest.raises(Violation, match="says count 4 and total 8 of group a, where 2 and 3"):
        anew.history.committed(going_on)


def test_oracle_expects_output_of_the_last_checkpoint_before_repeated_records() -> None:
    anew = Anew(visible=2)
    with pytest.raises(Violation, match="in-a-0:2 must come next: in-a-0:2 was skipped"):
        anew.history.committed(anew.results[1])


def test_oracle_expects_no_repetition_after_a_restore_of_the_last_checkpoint() -> None:
    """The job continues from the last checkpoint, because the one that began again published
    nothing.
    """
    anew = Anew()
    anew.history.oracle.rewind({SOURCE: 3}, {SOURCE: 3})
    anew.history.committed(anew.results[3])
    anew.history.oracle.complete()


def test_oracle_reports_a_checkpoint_that_lacks_repeated_records() -> None:
    anew = Anew()
    producer = anew.history.written(anew.results[1])
    logs = list(anew.history.logs.values())
    anew.history.oracle.cut(logs, {SOURCE: 2}, {producer})
    with pytest.raises(Violation, match=r"a checkpoint is behind in-a-0:2 \(key a\), and lacks"):
        anew.history.oracle.cut(logs, {SOURCE: 3}, {producer})


def test_oracle_accepts_a_checkpoint_that_lists_an_already_aborted_transaction() -> None:
    """Found by seed 1742: the reader had passed it by already."""
    given = events("a", "b")
    history = History(BY_PIPELINE[Stateless], *given)
    history.committed(plain(given[0]))
    producer = history.written(plain(given[1]))
    history.ended(producer, commit=False)
    logs = list(history.logs.values())
    history.oracle.cut(logs, {SOURCE: 2}, {producer})
    with pytest.raises(Violation, match="lacks it in out-a"):
        history.oracle.cut(logs, {SOURCE: 2}, set())
    with pytest.raises(Violation, match="missing at the end"):
        history.oracle.complete()
