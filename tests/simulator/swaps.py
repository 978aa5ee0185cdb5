"""Swaps between two runs of a job: of its storage, its Kafka cluster or a topic.

Between two job runs the user makes a mistake, or the environment has changed. An empty storage or
an older copy is behind the path. The address of the brokers leads to another Kafka cluster, or a
mirror has replaced the cluster. A topic that the job reads was deleted and created again, and is
shorter or longer now. tidegate must refuse the job for this reason and change nothing. Then the
simulated user does what the message says. The user corrects the path or the address, consents to
the mirror, or starts without the checkpoint (`--restore none`).

A swap happens only after the job has published, because before that there is nothing to refuse. It
also happens only if Kafka or the journal can show it. If all sinks are written at least once,
another storage cannot be detected. Processes that have survived their job run are killed first.
They would be on the other side of the swap, which is not simulated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tests.simulator.blobs import MemoryBlobs
from tests.simulator.cluster import ELSEWHERE, SimCluster
from tests.simulator.journal_view import JournalPosition
from tests.simulator.mounts import ANOTHER, everyone
from tests.simulator.oracle import Oracle
from tests.simulator.pipelines import KEYS, Event, Shape
from tidegate.commit.transactional_ids import parse_transactional_id
from tidegate.errors import RefusedError
from tidegate.ports.kafka import TransactionState
from tidegate.protocol.errors import kind_of
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport
from tidegate.stream_elements import TopicPartition

SWAPS: Final = 0.7
"""Share of the job runs after the first that have a swap before them, in runs with swaps."""
RUNS: Final = 0.8
"""Share of the runs with several job runs that have swaps."""
EMPTY: Final = "an empty storage lies behind the path"
OLDER: Final = "an older copy of the storage lies behind the path"
OTHER_CLUSTER: Final = "the brokers' address leads to another Kafka cluster"
MIRROR: Final = "a mirror has taken the place of the Kafka cluster"
RECREATED: Final = "a topic was deleted and created again"
KINDS: Final = (EMPTY, OLDER, OTHER_CLUSTER, MIRROR, RECREATED)
REFUSAL_TEXTS: Final = {
    EMPTY: ("has no journal in this checkpoint storage",),
    OLDER: ("Its newest entries are missing",),
    OTHER_CLUSTER: ("kafka.bootstrap_servers is Kafka cluster elsewhere",),
    MIRROR: ("kafka.bootstrap_servers is Kafka cluster mirror",),
    RECREATED: ("was deleted and created again",),
}
"""Texts that the refusal for each kind of swap must contain."""
MORE_RECORDS_MAX: Final = 8
REFUSALS_MAX: Final = 2
"""Largest number of refusals before the user corrects the cause."""


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap before a job run."""

    kind: str
    told: int
    """Number of refusals before the user corrects the cause."""


class HasBack(Protocol):
    """The attribute of a job run that this module needs."""

    @property
    def restore_back(self) -> int | None: ...


def drawn(
    rng: random.Random, job_runs: Sequence[HasBack], shape: Shape, *, losing: bool, retention: bool
) -> tuple[Swap | None, ...]:
    """Draw the swap before each job run, or None."""
    swaps: list[Swap | None] = [None] * len(job_runs)
    by_hand = any(job_run.restore_back is not None for job_run in job_runs)
    if rng.random() >= RUNS or losing:
        return tuple(swaps)
    kinds = [OTHER_CLUSTER]
    if len(shape.plain) < len(shape.sinks):
        kinds += [EMPTY, OLDER, OLDER]
    if not by_hand:
        kinds += [MIRROR, MIRROR]
    if not (by_hand or retention or shape.plain):
        kinds += [RECREATED, RECREATED, RECREATED]
    for number, job_run in enumerate(job_runs):
        if number and job_run.restore_back is None and rng.random() < SWAPS:
            swaps[number] = Swap(rng.choice(kinds), rng.randint(1, REFUSALS_MAX))
    return tuple(swaps)


class Swaps:
    """The execution of the swaps of one run. `write` appends an event to a source partition."""

    def __init__(
        self,
        world: SimCluster,
        oracle: Oracle,
        swaps: Sequence[Swap | None],
        write: Callable[[TopicPartition, Event], None],
    ) -> None:
        self._world, self._oracle, self._swaps, self._write = world, oracle, swaps, write
        self._rng = world.scheduler.random_for("swaps")
        self.active: Swap | None = None
        """The current swap, until the user corrects it."""
        self._refusals = 0
        self.met = 0
        """Number of swaps that were refused and corrected."""
        self._remedy: str = ""
        self._published = 0
        """Number of published checkpoints when the user found the remedy."""
        self._copies: list[tuple[int, dict[str, bytes]]] = []
        """Copies of the storage at the newest two claims, oldest first."""
        if any(swap and swap.kind == OLDER for swap in swaps):
            world.watch.claimed = self._copy

    def before(self, job_run: int) -> None:
        """Carry out the swap before the first start of a job run."""
        swap = self._swaps[job_run]
        watch = self._world.watch
        if swap is None or self.active or watch.journal.last.publication is None:
            return
        if self.consents or self.restore == "none":
            return  # the previous swap is not finished yet
        self._world.kill_orphans()
        self._world.kafka.run_due()
        watch.check_at_least_once_sinks()
        if not self._carry_out(swap.kind):
            return
        self._record_event("%s", swap.kind)
        self.active, self._refusals = swap, 0
        watch.must_refuse, watch.may_claim = swap.kind, swap.kind == RECREATED

    def refused(self, report: JobReport) -> bool:
        """Return whether a job has failed because of the swap, as it must. Count the refusal."""
        swap, error = self.active, report.error
        if swap is None or report.state is not JobState.FAILED or error is None:
            return False
        if error.kind != kind_of(RefusedError):
            return False
        if not any(words in error.message for words in REFUSAL_TEXTS[swap.kind]):
            return False
        self._refusals += 1
        if self._refusals >= swap.told:
            self._correct(swap)
        return True

    @property
    def bootstrap(self) -> str:
        """Address of the brokers that the user gives; empty for the right one."""
        swap = self.active
        return ELSEWHERE if swap and swap.kind == OTHER_CLUSTER else ""

    @property
    def restore(self) -> str:
        """Restore option of the user: `none` until there is a checkpoint of the new topic."""
        return "none" if self._is_remedying(RECREATED) else "latest"

    @property
    def consents(self) -> bool:
        """Whether the user consents to the mirror, which ends with a checkpoint on the mirror."""
        return self._is_remedying(MIRROR)

    def _is_remedying(self, kind: str) -> bool:
        published = len(self._world.watch.journal.checkpoints)
        return self._remedy == kind and published == self._published and not self.active

    # --- what happens ---------------------------------------------------------------------------

    def _carry_out(self, kind: str) -> bool:
        """Carry out a swap if it is possible now. Return whether it was."""
        world = self._world
        if kind == EMPTY:
            if not any(map(parse_transactional_id, world.kafka.coordinator.list())):
                return False
            world.mount_other(MemoryBlobs(ANOTHER), everyone)
        elif kind == OLDER:
            return self._swap_in_older_copy()
        elif kind == MIRROR:
            return self._swap_in_mirror()
        elif kind == RECREATED:
            self._recreate()
        return True

    def _swap_in_older_copy(self) -> bool:
        """Swap in an older copy, only if Kafka can show that it is older."""
        listed = map(parse_transactional_id, self._world.kafka.coordinator.list())
        newest = max((parts.attempt for parts in listed if parts), default=0)
        if not self._copies or newest <= self._copies[0][0]:
            return False
        identity = self._rng.choice((ANOTHER, self._world.blobs.identity))
        self._world.mount_other(MemoryBlobs(identity, self._copies[0][1]), everyone)
        return True

    def _copy(self, attempt: int) -> None:
        self._copies = [*self._copies[-1:], (attempt, dict(self._world.blobs.objects))]

    def _swap_in_mirror(self) -> bool:
        """Swap in a mirror, only if no transaction is open: a mirror has no open transactions."""
        kafka, journal = self._world.kafka, self._world.watch.journal
        is_open = {
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
        }
        if journal.last.named or is_open & set(kafka.coordinator.list().values()):
            return False
        kafka.become_mirror("mirror" + kafka.cluster_id.removeprefix("fake-kafka"))
        return True

    def _recreate(self) -> None:
        """Create a topic again, with fewer records than the job has read, or with more."""
        kafka, last = self._world.kafka, self._world.watch.journal.last
        topic = self._rng.choice(sorted({topic for _, topic, _ in last.offsets}))
        count = len([log for log in kafka.logs() if log.topic_partition.topic == topic])
        longer = self._rng.random() < 0.5
        kafka.delete_topic(topic)
        kafka.create_topic(topic, count)
        self._oracle.recreated(topic)
        for _, name, partition in sorted(last.offsets):
            if name == topic:
                self._fill(TopicPartition(topic, partition), last, longer=longer)
        self._record_event("topic %s is %s now", topic, "longer" if longer else "shorter")

    def _fill(
        self, topic_partition: TopicPartition, last: JournalPosition, *, longer: bool
    ) -> None:
        position = max(
            offset
            for (_, topic, partition), offset in last.offsets.items()
            if TopicPartition(topic, partition) == topic_partition
        )
        more = self._rng.randint(1, MORE_RECORDS_MAX)
        count = position + more if longer else self._rng.randint(0, max(0, position - 1))
        for number in range(count):
            name = f"{topic_partition.topic}-{topic_partition.partition}:new.{self.met}.{number}"
            key, amount = self._rng.choice(KEYS), self._rng.randint(1, 100)
            self._write(topic_partition, Event(name, key, amount))

    def _correct(self, swap: Swap) -> None:
        """Correct the swap, as the user does."""
        self.active = None
        self.met += 1
        self._world.watch.must_refuse = ""
        self._world.mounts.correct()
        self._remedy, self._published = swap.kind, len(self._world.watch.journal.checkpoints)
        self._record_event("understood: %s", swap.kind)

    def _record_event(self, what: str, *details: object) -> None:
        scheduler = self._world.scheduler
        scheduler.story.record(scheduler.now, "world", what, *details)
