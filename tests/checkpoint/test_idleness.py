"""When a job counts as idle, and that no record of an idle job waits for the longer interval."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.idleness import Idleness
from tidegate.ids import Attempt, CheckpointId
from tidegate.slot.progress_news import ProgressNews


def checkpoint(idleness: Idleness, *progress: int) -> bool:
    for ordinal, count in enumerate(progress):
        idleness.acknowledged(ordinal, count)
    idleness.completed()
    return idleness.is_idle


def test_job_is_idle_after_a_checkpoint_without_progress() -> None:
    idleness = Idleness()
    assert not idleness.is_idle
    assert not checkpoint(idleness, 5, 0), "nothing is known of the time before"
    assert checkpoint(idleness, 5, 0)
    assert checkpoint(idleness, 5, 0)
    assert not checkpoint(idleness, 5, 1)
    assert checkpoint(idleness, 5, 1)


def test_job_is_not_idle_any_more_when_a_slot_reports_progress() -> None:
    idleness = Idleness()
    checkpoint(idleness, 5, 0)
    checkpoint(idleness, 5, 0)
    found = []
    for progress in (0, 1, 0):  # the last heartbeat is an older one, and arrives late
        idleness.reported(1, progress)
        found.append(idleness.is_idle)
    assert found == [True, False, False]
    assert not checkpoint(idleness, 5, 1)
    assert checkpoint(idleness, 5, 1)


def test_progress_between_the_acknowledgement_and_the_completion_counts() -> None:
    idleness = Idleness()
    checkpoint(idleness, 5, 0)
    for ordinal, count in ((0, 5), (1, 0)):
        idleness.acknowledged(ordinal, count)
    idleness.reported(0, 6)
    idleness.completed()
    assert not idleness.is_idle


def test_job_is_idle_after_a_checkpoint_that_follows_an_aborted_one_without_progress() -> None:
    idleness = Idleness()
    checkpoint(idleness, 5)
    idleness.acknowledged(0, 5)  # of a checkpoint that is aborted
    assert checkpoint(idleness, 5)
    idleness.acknowledged(0, 6)
    assert not checkpoint(idleness, 6), "the aborted one contained the progress"


def cid(counter: int) -> CheckpointId:
    return CheckpointId(Attempt(1), counter)


def test_slot_has_news_after_a_checkpoint_without_progress_and_only_once() -> None:
    news = ProgressNews()
    assert not news.take(1), "before the first checkpoint"
    news.acknowledged(cid(1), 1)
    assert not news.take(2), "the checkpoint before is not known"
    news.acknowledged(cid(2), 2)
    assert not news.take(3)
    news.acknowledged(cid(3), 3)
    news.acknowledged(cid(4), 3)
    assert not news.take(3), "no progress"
    assert news.take(4)
    assert not news.take(5)


def test_slot_whose_second_subtask_acknowledges_progress_has_no_news() -> None:
    news = ProgressNews()
    for counter in (1, 2):
        news.acknowledged(cid(counter), 1)
        news.acknowledged(cid(counter), 2 * counter)
    assert not news.take(9)
    news.acknowledged(cid(3), 4)
    news.acknowledged(cid(3), 4)
    assert news.take(9)


class Job:
    """A job of some slots. Messages of a slot arrive in order, and heartbeats at any time."""

    def __init__(self, rng: random.Random, slots: int, subtasks: int) -> None:
        self.rng, self.idleness = rng, Idleness()
        self.progress = [0] * slots
        self.news = [ProgressNews() for _ in range(slots)]
        self.sent: list[deque[tuple[CheckpointId | None, int]]] = [deque() for _ in range(slots)]
        self.heartbeats: list[tuple[int, int]] = []
        self.subtasks = subtasks
        self.counter = 0
        #: How many acknowledgements each slot has to send and the JobMaster has to receive.
        self.to_send = [0] * slots
        self.to_receive = 0
        self.idle_times = 0

    def step(self) -> None:
        slot = self.rng.randrange(len(self.progress))
        match self.rng.choice(["record", "heartbeat", "late", "abort", *["checkpoint"] * 8]):
            case "record":
                self.progress[slot] += 1
                if self.news[slot].take(self.progress[slot]):
                    self.sent[slot].append((None, self.progress[slot]))
            case "heartbeat":
                self.heartbeats.append((slot, self.progress[slot]))
            case "late" if self.heartbeats:
                late = self.heartbeats.pop(self.rng.randrange(len(self.heartbeats)))
                self.idleness.reported(*late)
            case "abort" if self.rng.random() < 0.2:
                self.begin_checkpoint()
            case _:
                self.go_on(slot)

    def begin_checkpoint(self) -> None:
        self.counter += 1
        self.to_send = [self.subtasks] * len(self.progress)
        self.to_receive = sum(self.to_send)

    def go_on(self, slot: int) -> None:
        if self.to_send[slot] and self.rng.random() < 0.5:
            self.to_send[slot] -= 1
            self.news[slot].acknowledged(cid(self.counter), self.progress[slot])
            self.sent[slot].append((cid(self.counter), self.progress[slot]))
        elif self.sent[slot]:
            self.receive(slot, *self.sent[slot].popleft())
        if not self.to_receive:
            if self.counter:
                self.idleness.completed()
                self.idle_times += self.idleness.is_idle
            self.begin_checkpoint()

    def receive(self, slot: int, acknowledged: CheckpointId | None, progress: int) -> None:
        if acknowledged is None:
            self.idleness.reported(slot, progress)
            return
        self.idleness.acknowledged(slot, progress)
        self.to_receive -= acknowledged == cid(self.counter)

    def validate(self) -> None:
        """Check that the JobMaster of an idle job knows each record, or that news are on the
        way.
        """
        if not self.idleness.is_idle:
            return
        for slot, progress in enumerate(self.progress):
            on_the_way = [count for _, count in self.sent[slot]]
            known = self.idleness._reported[slot]
            assert progress == known or any(count > known for count in on_the_way)


@given(st.randoms(use_true_random=False), st.integers(1, 3), st.integers(1, 2))
def test_an_idle_job_knows_of_each_record_or_its_news_are_on_the_way(
    rng: random.Random, slots: int, subtasks: int
) -> None:
    job = Job(rng, slots, subtasks)
    for _ in range(400):
        job.step()
        job.validate()


def test_random_jobs_of_that_test_are_often_idle() -> None:
    job = Job(random.Random(1), slots=2, subtasks=2)
    for _ in range(20_000):
        job.step()
    assert job.idle_times > 100
