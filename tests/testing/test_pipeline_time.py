"""Event time in a `PipelineTest` with several partitions: watermarks, idleness, and errors."""

from __future__ import annotations

import pytest

from tests.testing.pipelines_under_test import (
    Click,
    Clicks,
    OneSource,
    Order,
    Seen,
    Silence,
    Silences,
    Totals,
)
from tidegate import PipelineError
from tidegate.stream_elements import MIN_MS
from tidegate.testing import PipelineTest, Setup

ANYWHERE = pytest.mark.parametrize("parallelism", [1, 2, 3])


def watermark_after(test: PipelineTest) -> int:
    """Push a late record and return the watermark that its step has."""
    test.source(OneSource.clicks).push(Click("probe", -1))
    return test.sink(OneSource.seen).read()[-1].watermark_ms


@ANYWHERE
def test_named_partition_holds_back_the_watermark_until_its_first_record(parallelism: int) -> None:
    with PipelineTest(OneSource, Setup(parallelism=parallelism)) as test:
        first, second = test.source(OneSource.clicks), test.source(OneSource.clicks, partition=1)
        first.push(Click("a", 500))
        assert watermark_after(test) == MIN_MS
        second.push(Click("b", 300))
        assert watermark_after(test) == 289


@ANYWHERE
def test_source_of_which_no_partition_is_named_has_partition_0(parallelism: int) -> None:
    with PipelineTest(Clicks, Setup(parallelism=parallelism)) as test:
        clicks = test.source(Clicks.clicks).push(Click("a", 500)).push(Click("a", 501))
        assert [each.watermark_ms for each in test.sink(Clicks.seen).read()] == [MIN_MS, MIN_MS]
        test.source(Clicks.others).push(Click("b", 301))
        clicks.push(Click("a", 502))
        assert test.sink(Clicks.seen).read()[-1] == Seen("a", 502, 3, 300, late=False)


@ANYWHERE
def test_partition_that_is_named_later_holds_back_the_watermark_from_then_on(
    parallelism: int,
) -> None:
    with PipelineTest(OneSource, Setup(parallelism=parallelism)) as test:
        first = test.source(OneSource.clicks).push(Click("a", 500))
        late = test.source(OneSource.clicks, partition=1)
        first.push(Click("a", 900))
        assert watermark_after(test) == 489  # a step with state keeps what it had
        late.push(Click("b", 700))
        assert watermark_after(test) == 689


@ANYWHERE
def test_idle_partition_does_not_hold_back_the_others(parallelism: int) -> None:
    with PipelineTest(OneSource, Setup(parallelism=parallelism)) as test:
        first, second = test.source(OneSource.clicks), test.source(OneSource.clicks, partition=1)
        first.push(Click("a", 500))
        second.idle()
        assert watermark_after(test) == 489
        test.checkpoint().crash(parallelism=2)
        first.push(Click("a", 600))
        assert watermark_after(test) == 589
        second.push(Click("b", 700))
        first.push(Click("a", 900))
        assert watermark_after(test) == 689


@ANYWHERE
def test_partition_becomes_idle_when_processing_time_passes(parallelism: int) -> None:
    with PipelineTest(OneSource, Setup(parallelism=parallelism)) as test:
        first, second = test.source(OneSource.clicks), test.source(OneSource.clicks, partition=1)
        second.push(Click("b", 100))
        test.advance("30 s")
        first.push(Click("a", 500))
        test.advance("29900 ms")
        assert test.sink(OneSource.seen).read()[-1].watermark_ms == MIN_MS
        assert watermark_after(test) == 89
        test.advance("100 ms")
        assert watermark_after(test) == 489
        test.advance("2 min")
        assert watermark_after(test) == 489


@ANYWHERE
def test_watermark_of_all_partitions_is_set(parallelism: int) -> None:
    with PipelineTest(OneSource, Setup(parallelism=parallelism)) as test:
        test.source(OneSource.clicks, partition=2)
        assert test.watermark(700) is test
        test.source(OneSource.clicks, partition=2).push(Click("a", 650), Click("a", 750))
        found = test.sink(OneSource.seen).read()
        assert [(each.at_ms, each.late) for each in found] == [(650, True), (750, False)]


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_watermark_follows_all_records_of_a_push(batch: int) -> None:
    with PipelineTest(OneSource, Setup(batch=batch)) as test:
        test.source(OneSource.clicks).push(Click("a", 500), Click("a", 100), Click("a", 50))
        assert not any(each.late for each in test.sink(OneSource.seen).read())
        assert watermark_after(test) == 489


def test_watermark_can_be_set_before_a_partition_is_named() -> None:
    with PipelineTest(Clicks) as test:
        test.watermark(700)
        test.source(Clicks.clicks).push(Click("a", 700))
        assert test.sink(Clicks.seen).read()[0].late


@ANYWHERE
def test_watermark_of_one_partition_is_set_and_set_again_after_a_crash(parallelism: int) -> None:
    with PipelineTest(OneSource) as test:
        first, second = test.source(OneSource.clicks), test.source(OneSource.clicks, partition=1)
        first.push(Click("a", 500))
        second.watermark(300)
        test.crash(parallelism=parallelism)
        assert watermark_after(test) == 300
        second.watermark(300).watermark(400)
        assert watermark_after(test) == 400


def test_lower_record_does_not_count_as_a_watermark_that_goes_back() -> None:
    with PipelineTest(OneSource) as test:
        source = test.source(OneSource.clicks).watermark(500).push(Click("a", 100))
        source.idle().push(Click("a", 100))
        assert test.counters.backward_watermarks == 0


def test_ended_partition_keeps_its_watermark() -> None:
    with PipelineTest(OneSource, Setup(parallelism=2)) as test:
        first, second = test.source(OneSource.clicks), test.source(OneSource.clicks, partition=1)
        second.push(Click("b", 100)).end()
        first.push(Click("a", 500))
        assert watermark_after(test) == 89
        test.watermark(600)
        assert watermark_after(test) == 89


def test_watermark_that_goes_back_is_refused() -> None:
    with PipelineTest(OneSource) as test:
        source = test.source(OneSource.clicks).push(Click("a", 500))
        words = r"watermark\(400\): partition 0 of source 'clicks' is at 489 already, and"
        for refused in (source.watermark, test.watermark):
            with pytest.raises(PipelineError, match=words):
                refused(400)
        source.watermark(489)


def test_watermark_that_one_partition_has_passed_moves_no_other() -> None:
    with PipelineTest(OneSource) as test:
        test.source(OneSource.clicks)
        test.source(OneSource.clicks, partition=1).push(Click("a", 500))
        with pytest.raises(PipelineError, match="partition 1 of source 'clicks' is at 489 already"):
            test.watermark(400)
        assert watermark_after(test) < 0


def test_watermark_of_a_source_without_watermarks_is_refused() -> None:
    with PipelineTest(Totals) as test:
        for refused in (test.source(Totals.orders).watermark, test.watermark):
            with pytest.raises(PipelineError, match=r"no watermarks=.* Give"):
                refused(1)
        with pytest.raises(PipelineError, match="takes no part in event time"):
            test.source(Totals.orders).idle()
        test.source(Totals.orders).push(Order("ann", 1))


def test_idleness_that_a_job_does_not_have_is_refused() -> None:
    words = r"'others' has no idle_after, so none .*Give its"
    with PipelineTest(Clicks) as test, pytest.raises(PipelineError, match=words):
        test.source(Clicks.others).idle()


@pytest.mark.parametrize("at", [True, "12:00", 10**20])
def test_watermark_that_is_no_instant_is_refused(at: object) -> None:
    with PipelineTest(OneSource) as test, pytest.raises(PipelineError, match="is no instant: "):
        test.watermark(at)  # type: ignore[arg-type]


@ANYWHERE
def test_event_timer_fires_once_over_a_crash(parallelism: int) -> None:
    with PipelineTest(Silences, Setup(parallelism=2)) as test:
        test.source(Silences.clicks).push(Click("a", 100), Click("b", 120))
        test.watermark(130)
        assert test.sink(Silences.silences).read() == [Silence("a", "silence", 130, 1)]
        test.checkpoint().crash(parallelism=parallelism)
        test.watermark(200)
        assert test.sink(Silences.silences).read() == [Silence("b", "silence", 150, 1)]


@ANYWHERE
def test_processing_timers_fire_at_their_times_while_the_clock_moves(parallelism: int) -> None:
    setup = Setup(parallelism=parallelism, now_ms=225)
    with PipelineTest(Silences, setup) as test:
        test.source(Silences.clicks).push(Click("a", 100))
        test.advance("750 ms")
        assert test.sink(Silences.silences).read() == []
        test.advance("2550 ms").checkpoint()
        fired = [each.at_ms for each in test.sink(Silences.silences).read()]
        assert fired == [1_000, 2_000, 3_000]
        test.crash(parallelism=3).advance("2 s")
        fired = [each.at_ms for each in test.sink(Silences.silences).read()]
        assert fired == [4_000, 5_000]


@ANYWHERE
def test_drain_fires_all_event_timers_and_ends_the_job(parallelism: int) -> None:
    with PipelineTest(Silences, Setup(parallelism=parallelism)) as test:
        test.source(Silences.clicks).push(Click("a", 100))
        source = test.source(Silences.clicks, partition=1).push(Click("b", 200))
        test.source(Silences.clicks, partition=2).end()
        test.drain()
        found = sorted(each.user for each in test.sink(Silences.silences).read())
        assert found == ["a", "b"]
        with pytest.raises(PipelineError, match="has drained this job, so it processes nothing"):
            source.push(Click("a", 300))
        with pytest.raises(PipelineError, match=r"all timers have fired, so no other run .* stop"):
            test.crash()


@ANYWHERE
def test_end_of_all_partitions_fires_all_event_timers_once(parallelism: int) -> None:
    with PipelineTest(Silences, Setup(parallelism=2)) as test:
        source = test.source(Silences.clicks).push(Click("a", 100))
        test.checkpoint()
        source.end()
        test.crash(parallelism=parallelism)
        assert test.sink(Silences.silences).read() == [Silence("a", "silence", 130, 1)]
        test.checkpoint().crash(parallelism=3).drain()
        assert test.sink(Silences.silences).read() == []


def test_stop_fires_no_timer() -> None:
    with PipelineTest(Silences) as test:
        test.source(Silences.clicks).push(Click("a", 100))
        test.stop()
        assert test.sink(Silences.silences).read() == []
