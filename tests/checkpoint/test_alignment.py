"""Alignment against a reference: random channels and readers, aborted and skipped checkpoints."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.alignment import (
    PENDING_IDS_MAX,
    Alignment,
    AlignmentInstruction,
    Block,
    ChannelInputEnded,
    TakeSnapshot,
    Unblock,
)
from tidegate.errors import InternalError
from tidegate.ids import Attempt, CheckpointId
from tidegate.stream_elements import Barrier, EndOfInput

RECORD = "record"
Script = list[str | int | EndOfInput]


def cid(counter: int) -> CheckpointId:
    return CheckpointId(Attempt(1), counter)


def bar(counter: int, *, final: bool = False) -> Barrier:
    return Barrier(cid(counter), final)


# --- examples -----------------------------------------------------------------------------------


def test_a_single_channel_takes_each_snapshot_at_once() -> None:
    alignment = Alignment(1)
    assert alignment.barrier(0, bar(1)) == [TakeSnapshot(barrier=bar(1))]
    assert alignment.barrier(0, bar(2, final=True)) == [TakeSnapshot(barrier=bar(2, final=True))]


def test_channels_are_blocked_until_the_last_barrier() -> None:
    alignment = Alignment(3)
    assert alignment.barrier(1, bar(1)) == [Block(channel=1)]
    assert alignment.state.value == "aligning"
    assert alignment.barrier(2, bar(1)) == [Block(channel=2)]
    assert alignment.barrier(0, bar(1)) == [
        TakeSnapshot(barrier=bar(1)),
        Unblock(channels=(1, 2)),
    ]
    assert alignment.state.value == "idle"


def test_a_newer_barrier_gives_up_an_older_alignment() -> None:
    alignment = Alignment(3)
    alignment.barrier(0, bar(1))
    assert alignment.barrier(1, bar(2)) == [Unblock(channels=(0,)), Block(channel=1)]
    assert alignment.barrier(2, bar(1)) == [], "late"
    assert alignment.barrier(2, bar(2)) == [Block(channel=2)]
    assert alignment.barrier(0, bar(2)) == [
        TakeSnapshot(barrier=bar(2)),
        Unblock(channels=(1, 2)),
    ]


def test_barriers_of_a_cancelled_checkpoint_start_no_alignment() -> None:
    alignment = Alignment(2)
    alignment.barrier(0, bar(1))
    assert alignment.cancel(cid(1)) == [Unblock(channels=(0,))]
    assert alignment.barrier(1, bar(1)) == []
    assert alignment.cancel(cid(2)) == []
    assert alignment.barrier(0, bar(2)) == []
    assert alignment.barrier(1, bar(3)) == [Block(channel=1)]


def test_a_cancel_of_an_older_checkpoint_leaves_the_alignment_alone() -> None:
    alignment = Alignment(2)
    alignment.barrier(0, bar(2))
    assert alignment.cancel(cid(1)) == []
    assert alignment.blocked == {0}


def test_a_cancel_of_a_newer_checkpoint_ends_an_older_alignment() -> None:
    alignment = Alignment(2)
    alignment.barrier(0, bar(1))
    assert alignment.cancel(cid(2)) == [Unblock(channels=(0,))]
    assert alignment.barrier(1, bar(1)) == []


def test_barriers_flow_after_the_end_of_input() -> None:
    alignment = Alignment(2)
    assert alignment.end_of_input(0) == []
    assert alignment.barrier(0, bar(1)) == [Block(channel=0)]
    assert alignment.end_of_input(1) == [ChannelInputEnded()]
    assert alignment.barrier(1, bar(1)) == [TakeSnapshot(barrier=bar(1)), Unblock(channels=(0,))]


def test_an_element_of_a_blocked_channel_is_a_bug() -> None:
    alignment = Alignment(2)
    alignment.barrier(0, bar(1))
    with pytest.raises(InternalError, match="channel 0 is blocked"):
        alignment.barrier(0, bar(2))
    with pytest.raises(InternalError, match="channel 0 is blocked"):
        alignment.end_of_input(0)


def test_barrier_older_than_the_last_barrier_of_its_channel_is_a_bug() -> None:
    alignment = Alignment(1)
    alignment.barrier(0, bar(2))
    with pytest.raises(InternalError, match="barrier 1-1 follows barrier 1-2"):
        alignment.barrier(0, bar(1))


def test_at_least_once_never_blocks_channels_and_counts_barriers_per_checkpoint() -> None:
    alignment = Alignment(2, "at_least_once")
    assert alignment.barrier(0, bar(1)) == []
    assert alignment.barrier(0, bar(2)) == []
    assert alignment.blocked == frozenset()
    assert alignment.barrier(1, bar(1)) == [TakeSnapshot(barrier=bar(1))]
    assert alignment.barrier(1, bar(2)) == [TakeSnapshot(barrier=bar(2))]


def test_at_least_once_drops_older_checkpoints_when_a_newer_one_is_complete() -> None:
    alignment = Alignment(2, "at_least_once")
    alignment.barrier(0, bar(1))
    alignment.barrier(0, bar(2))
    assert alignment.barrier(1, bar(2)) == [TakeSnapshot(barrier=bar(2))]
    assert alignment._received == {}


def test_at_least_once_counts_a_bounded_number_of_pending_checkpoints() -> None:
    alignment = Alignment(2, "at_least_once")
    for counter in range(1, PENDING_IDS_MAX + 2):
        assert alignment.barrier(0, bar(counter)) == []
        alignment.validate()
    assert alignment.barrier(1, bar(1)) == [], "the oldest was dropped"
    assert alignment.barrier(1, bar(2)) == [TakeSnapshot(barrier=bar(2))]


# --- random interleavings -----------------------------------------------------------------------


@dataclass
class Case:
    """Scripts per channel. Each checkpoint passes on every channel; an aborted one on some."""

    scripts: list[Script]
    aborted: set[int]

    def whole(self, *, below: int = 100) -> list[int]:
        """Checkpoints that are to be taken. One is under way at a time, so that a later one is
        aborted only when these are done.
        """
        ids = {element for script in self.scripts for element in script if isinstance(element, int)}
        return sorted(counter for counter in ids - self.aborted if counter < below)


@dataclass
class Reader:
    """The task: reads channels that are not blocked, in any order, and obeys instructions."""

    case: Case
    alignment: Alignment
    rng: random.Random
    positions: list[int] = field(default_factory=list)
    blocked: set[int] = field(default_factory=set)
    taken: list[int] = field(default_factory=list)
    cancelled: set[int] = field(default_factory=set)
    ended: int = 0

    def run(self, *, exact: bool) -> None:
        self.positions = [0] * len(self.case.scripts)
        to_cancel = set(self.case.aborted)
        while True:
            ready = [
                channel
                for channel, script in enumerate(self.case.scripts)
                if channel not in self.blocked and self.positions[channel] < len(script)
            ]
            possible = sorted(
                c for c in to_cancel if set(self.case.whole(below=c)) <= {*self.taken}
            )
            if possible and (not ready or self.rng.random() < 0.1):
                counter = self.rng.choice(possible)
                to_cancel.remove(counter)
                self.cancelled.add(counter)
                self._obey(self.alignment.cancel(cid(counter)), exact=exact)
            elif ready:
                self._read(self.rng.choice(ready), exact=exact)
            else:
                return
            self.alignment.validate()
            assert self.alignment.blocked == self.blocked

    def _read(self, channel: int, *, exact: bool) -> None:
        element = self.case.scripts[channel][self.positions[channel]]
        self.positions[channel] += 1
        if isinstance(element, int):
            self._obey(self.alignment.barrier(channel, bar(element)), exact=exact)
        elif isinstance(element, EndOfInput):
            self._obey(self.alignment.end_of_input(channel), exact=exact)

    def _obey(self, instructions: list[AlignmentInstruction], *, exact: bool) -> None:
        for instruction in instructions:
            match instruction:
                case Block(channel=channel):
                    self.blocked.add(channel)
                case Unblock(channels=channels):
                    assert self.blocked >= set(channels)
                    self.blocked -= set(channels)
                case ChannelInputEnded():
                    self.ended += 1
                case TakeSnapshot(barrier=barrier):
                    self._snapshot(barrier.checkpoint.counter, exact=exact)

    def _snapshot(self, counter: int, *, exact: bool) -> None:
        assert counter not in self.cancelled
        self.taken.append(counter)
        for script, position in zip(self.case.scripts, self.positions, strict=True):
            at = script.index(counter)
            assert at < position, "everything before the barrier belongs to the checkpoint"
            if exact:
                assert at == position - 1, "nothing after the barrier may have been read"


@st.composite
def cases(draw: st.DrawFn) -> Case:
    channels = draw(st.integers(1, 4))
    scripts: list[Script] = [[] for _ in range(channels)]
    aborted: set[int] = set()
    ended: set[int] = set()
    for counter in range(1, draw(st.integers(1, 7)) + 1):
        reached = draw(st.sets(st.integers(0, channels - 1))) if draw(st.booleans()) else None
        if reached is not None:
            aborted.add(counter)
        for channel, script in enumerate(scripts):
            if channel not in ended:
                script.extend([RECORD] * draw(st.integers(0, 2)))
                if draw(st.integers(0, 9)) == 0:
                    script.append(EndOfInput())
                    ended.add(channel)
            if reached is None or channel in reached:
                script.append(counter)
    for channel, script in enumerate(scripts):
        if channel not in ended:
            script.extend([RECORD, EndOfInput()])
    return Case(scripts, aborted)


@given(cases(), st.randoms(use_true_random=False))
def test_exactly_once_snapshots_are_taken_at_the_barriers_in_any_reading_order(
    case: Case, rng: random.Random
) -> None:
    reader = Reader(case, Alignment(len(case.scripts)), rng)
    reader.run(exact=True)
    _check_end(reader, case)


@given(cases(), st.randoms(use_true_random=False))
def test_at_least_once_snapshots_are_taken_after_the_barriers_in_any_reading_order(
    case: Case, rng: random.Random
) -> None:
    reader = Reader(case, Alignment(len(case.scripts), "at_least_once"), rng)
    reader.run(exact=False)
    _check_end(reader, case)


def _check_end(reader: Reader, case: Case) -> None:
    assert reader.positions == [len(script) for script in case.scripts], "somebody stays blocked"
    assert reader.ended == 1
    taken = [counter for counter in reader.taken if counter not in case.aborted]
    assert taken == case.whole(), "each exactly once, in order"
    assert reader.taken == sorted(set(reader.taken))
