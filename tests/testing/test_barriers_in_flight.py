"""`PipelineTest` with checkpoints that come by themselves: barriers pass while records, timers and
watermarks are on their way, and a crash restores such a cut.

Method: each click of a user has a timer of its own. The clicks of a user are in one partition, in
order of time, so none is late, and the results follow from the clicks alone: one for each click,
with its number. A second step behind another exchange numbers them again. `judge` draws a test from
a seed. The mutants use it too.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pytest

from tests.testing.pipelines_under_test import Click, OneSource
from tidegate import (
    Context,
    Count,
    EventTimers,
    Fired,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Monotonous,
    Pipeline,
    PipelineError,
    Session,
    Sliding,
    Tumbling,
    ValueState,
    Window,
    WindowContext,
    WindowProcess,
)
from tidegate.testing import PipelineTest, Setup

FIRED: list[int] = []
"""The times of all timers that have fired, also of those that a crash has withdrawn."""
END_MS = 10_000
SEEDS = 12


class Tap(msgspec.Struct, frozen=True):
    user: str
    at_ms: int


class Counted(msgspec.Struct, frozen=True):
    user: str
    at_ms: int
    number: int
    in_group: int = 0


class EachTap(KeyedProcess[str, Tap, Counted]):
    """A timer for each tap. It numbers the taps of a user in the order in which they fire."""

    fired = ValueState(int, default=0)
    taps = EventTimers(int)

    def process(self, tap: Tap, ctx: Context[str]) -> Iterable[Counted]:
        self.taps.set(tap.at_ms, tap.at_ms + 30)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Counted]:
        FIRED.append(fired.at_ms)
        self.fired.value += 1
        yield Counted(ctx.key, fired.at_ms - 30, self.fired.value)


class InGroup(KeyedProcess[str, Counted, Counted]):
    """Numbers the results of the users of a partition."""

    count = ValueState(int, default=0)

    def process(self, counted: Counted, ctx: Context[str]) -> Iterable[Counted]:
        self.count.value += 1
        yield msgspec.structs.replace(counted, in_group=self.count.value)


class Taps(Pipeline, name="taps"):
    taps = KafkaSource(
        "taps", value=Json(Tap), event_time=lambda tap: tap.at_ms, watermarks=Monotonous()
    )
    counts = KafkaSink("counts", value=Json(Counted))

    def define(self) -> None:
        counted = self.taps.key_by(lambda tap: tap.user).process(EachTap(), uid="each")
        counted.key_by(lambda each: each.user[0]).process(InGroup(), uid="group").to(self.counts)


def judge(seed: int) -> None:
    """a `PipelineTest` with barriers in flight"""
    draw = random.Random(seed)
    setup = Setup(
        parallelism=draw.randint(1, 3),
        batch=draw.randint(1, 3),
        seed=seed + 1,
        checkpoint_every=draw.choice((1, 2, 5, 12)),
        shuffled_replay=draw.random() < 0.5,
    )
    sent: list[list[Tap]] = [[], [], []]
    now_ms = [0, 0, 0]
    with PipelineTest(Taps, setup) as test:
        sources = [test.source(Taps.taps, partition=number) for number in range(3)]
        for _ in range(draw.randint(4, 14)):
            number = draw.randrange(3)
            taps = []
            for _ in range(draw.randint(1, 6)):
                now_ms[number] += draw.randint(1, 40)
                taps.append(Tap(f"{number}{draw.choice('abc')}", now_ms[number]))
            sent[number] += taps
            sources[number].push(*taps)
            if draw.random() < 0.3:
                test.crash(parallelism=draw.choice((None, 1, 2, 3)))
        test.watermark(END_MS)
        if draw.random() < 0.7:
            test.crash(parallelism=draw.choice((None, 1, 2, 3)))
        _assert_exact(sent, test.sink(Taps.counts).read())


def _assert_exact(sent: list[list[Tap]], found: list[Counted]) -> None:
    by_user: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for each in found:
        by_user[each.user].append((each.at_ms, each.number))
    expected: dict[str, list[int]] = defaultdict(list)
    for tap in (tap for taps in sent for tap in taps):
        expected[tap.user].append(tap.at_ms)
    assert by_user == {
        user: [(at_ms, number + 1) for number, at_ms in enumerate(times)]
        for user, times in expected.items()
    }
    for number, taps in enumerate(sent):
        in_group = [each.in_group for each in found if each.user[0] == str(number)]
        assert in_group == list(range(1, len(taps) + 1))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_results_are_exact_whatever_a_barrier_has_cut(seed: int) -> None:
    judge(seed)


def fired_again(setup: Setup) -> int:
    """Return how many of eight timers that one watermark makes due fire again after a crash."""
    with PipelineTest(Taps, setup) as test:
        taps = [Tap(f"0{user}", 100 + number) for number, user in enumerate("abcdefgh")]
        test.source(Taps.taps).push(*taps)
        test.checkpoint()
        test.watermark(END_MS)
        FIRED.clear()
        test.crash()
        _assert_exact([taps], test.sink(Taps.counts).read())
        return len(FIRED)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_barrier_passes_between_two_pieces_of_a_burst(parallelism: int) -> None:
    assert fired_again(Setup(parallelism=parallelism, batch=1)) == 8, "no checkpoint has come"
    found = {
        fired_again(Setup(parallelism=parallelism, batch=1, seed=seed, checkpoint_every=3))
        for seed in range(1, 8)
    }
    assert found & set(range(1, 8)), "some checkpoint holds a part of the burst"


WINDOWS_FIRED: list[str] = []
"""The keys of the windows that have fired, also in attempts that a crash ended."""


class FiredWindow(WindowProcess[str, Tap, str]):
    """Notes each firing, and emits its key with the number of its records."""

    def process(self, records: Sequence[Tap], ctx: WindowContext[str]) -> Iterable[str]:
        WINDOWS_FIRED.append(ctx.window.key)
        yield f"{ctx.window.key}: {len(records)}"


class Windows(Pipeline, name="windows"):
    """Windows in rows, in tables, in panes and in sessions, which one watermark makes due."""

    taps = KafkaSource(
        "taps", value=Json(Tap), event_time=lambda tap: tap.at_ms, watermarks=Monotonous()
    )
    rows = KafkaSink("rows", value=Json(str))
    tables = KafkaSink("tables", value=Json(str))
    panes = KafkaSink("panes", value=Json(str))
    sessions = KafkaSink("sessions", value=Json(str))

    def define(self) -> None:
        users = self.taps.key_by(lambda tap: tap.user)
        users.window(Tumbling("1 s")).process(FiredWindow(), uid="in-rows").to(self.rows)
        for uid, assigner, sink in (
            ("in-tables", Tumbling("1 s"), self.tables),
            ("in-panes", Sliding("2 s", "1 s"), self.panes),
            ("in-sessions", Session("1 s"), self.sessions),
        ):
            users.window(assigner).aggregate(Count(), uid=uid, into=_noted(uid), returns=str).to(
                sink
            )


def _noted(uid: str) -> Callable[[Window[str], int], str]:
    def into(window: Window[str], count: int) -> str:
        WINDOWS_FIRED.append(f"{uid}/{window.key}")
        return f"{window.key}: {count}"

    return into


def windows_fired_again(setup: Setup) -> Counter[str]:
    """Return how many of eight windows of each step fire again after a crash."""
    with PipelineTest(Windows, setup) as test:
        test.source(Windows.taps).push(*(Tap(user, 100) for user in "abcdefgh"))
        test.checkpoint()
        test.watermark(END_MS)
        WINDOWS_FIRED.clear()
        test.crash()
        expected = sorted(f"{user}: 1" for user in "abcdefgh")
        for sink in (Windows.rows, Windows.tables, Windows.sessions):
            assert sorted(test.sink(sink).read()) == expected
        assert sorted(test.sink(Windows.panes).read()) == sorted(2 * expected)
    return Counter(each.rpartition("/")[0] or "in-rows" for each in WINDOWS_FIRED)


def test_barrier_passes_between_two_pieces_of_a_burst_of_windows() -> None:
    """Some checkpoint holds a part of the burst, for each layout of windows."""
    whole = {"in-rows": 8, "in-tables": 8, "in-panes": 16, "in-sessions": 8}
    assert windows_fired_again(Setup(batch=1)) == whole, "no checkpoint has come"
    cut = set()
    for seed in range(1, 17):
        found = windows_fired_again(Setup(batch=1, seed=seed, checkpoint_every=20))
        cut |= {uid for uid, count in whole.items() if 0 < found[uid] < count}
    assert cut == set(whole)


def test_checkpoint_that_comes_by_itself_commits_what_is_in_front_of_its_barriers() -> None:
    with PipelineTest(Taps, Setup(batch=1, checkpoint_every=1)) as test:
        test.source(Taps.taps).push(Tap("0a", 1), Tap("0a", 2))
        test.watermark(END_MS)
        test.crash()
        counts = test.sink(Taps.counts).read()
    assert [(each.at_ms, each.number) for each in counts] == [(1, 1), (2, 2)]


def replayed(seed: int, *, shuffled: bool) -> list[tuple[str, int]]:
    """Return the clicks in the order in which a step gets them after a crash."""
    with PipelineTest(OneSource, Setup(seed=seed, shuffled_replay=shuffled)) as test:
        sources = [test.source(OneSource.clicks, partition=number) for number in range(2)]
        for number in range(6):
            sources[number % 2].push(Click(f"{number % 2}a", number * 10))
        test.crash()
        return [(each.user, each.at_ms) for each in test.sink(OneSource.seen).read()]


def test_crash_leads_to_another_order_between_partitions_only_if_the_setup_says_so() -> None:
    as_given = {tuple(replayed(seed, shuffled=False)) for seed in range(1, 6)}
    shuffled = {tuple(replayed(seed, shuffled=True)) for seed in range(1, 6)}
    assert as_given == {tuple((f"{number % 2}a", number * 10) for number in range(6))}
    assert len(shuffled) > 1
    for order in shuffled:
        for user in ("0a", "1a"):
            times = [at_ms for each, at_ms in order if each == user]
            assert times == sorted(times)


def test_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"checkpoint_every=-1: give a number of steps"):
        PipelineTest(Taps, Setup(checkpoint_every=-1))
