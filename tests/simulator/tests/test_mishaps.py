"""What befalls the checkpoint storage: what processes see of it, that runs meet it, and that a job
without its guards is found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from tests.mutants.finders import seeds_with
from tests.simulator import mishaps
from tests.simulator.blobs import AT_ONCE, MemoryBlobs, SimBlobStore
from tests.simulator.kafka.faults import Api, Call
from tests.simulator.mounts import (
    ANOTHER,
    Mounts,
    OtherClusterFaults,
    everyone,
    nothing,
    older_copy,
)
from tests.simulator.plan import Plan
from tests.simulator.run import run_seed
from tests.simulator.tests.contracts import World
from tests.simulator.tests.test_blobs import Always
from tests.simulator.trace import TraceEvent
from tidegate.commit.journal.entries import entry_path
from tidegate.controlplane.jobmaster.events import STORAGE_HANGS
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ids import JobName, JournalNumber
from tidegate.ports.blobs import CreateResult

SEEDS = range(400)


class Host:
    """One process and its way to a storage that may be replaced."""

    def __init__(self) -> None:
        self.world = World(0)
        self.right = MemoryBlobs()
        self.mounts = Mounts(self.right)
        self.store = SimBlobStore(self.mounts, self.world.process, Always(AT_ONCE))

    def does(self, act: Callable[[], None]) -> None:
        self.world.run(act)
        self.world.scheduler.close()


@pytest.mark.parametrize("wrong", [nothing(), MemoryBlobs(ANOTHER)], ids=["nothing", "another"])
def test_store_bound_to_one_storage_raises_storage_gone_on_another(wrong: MemoryBlobs) -> None:
    host = Host()

    def act() -> None:
        host.store.bind(host.store.identify())
        host.mounts.mount(wrong, everyone)
        with pytest.raises(StorageGoneError):
            host.store.put("a", b"1")
        with pytest.raises(StorageGoneError):
            host.store.create("b", b"1")
        with pytest.raises(StorageGoneError):
            host.store.get("a")
        host.mounts.correct()
        assert host.store.create("b", b"1") is CreateResult.CREATED

    host.does(act)
    assert (wrong.objects, host.right.objects) == ({}, {"b": b"1"})


def test_store_without_a_mounted_storage_reads_nothing_and_can_not_write() -> None:
    host = Host()

    def act() -> None:
        host.mounts.mount(nothing(), everyone)
        assert host.store.get("a") is None
        with pytest.raises(StorageError, match="Nothing is mounted"):
            host.store.put("a", b"1")
        with pytest.raises(StorageError, match="Nothing is mounted"):
            host.store.identify()

    host.does(act)


def test_create_is_unknown_and_lands_if_the_storage_vanishes_during_it() -> None:
    host = Host()

    def act() -> None:
        host.store.identify()
        host.right.watch = lambda *_: host.mounts.mount(MemoryBlobs(ANOTHER), everyone)
        assert host.store.create("a", b"1") is CreateResult.UNKNOWN

    host.does(act)
    assert host.right.objects == {"a": b"1"}


def test_older_storage_copy_lacks_the_claim_of_the_attempt_and_later_entries() -> None:
    blobs, job = MemoryBlobs(), JobName("j")
    paths = [entry_path(job, JournalNumber(number)) for number in (1, 2, 3)]
    blobs.objects = dict.fromkeys((*paths, "j/manifests/1-1.json"), b"")
    copy = older_copy(blobs, 2, blobs.identity)
    assert sorted(copy.objects) == [paths[0], "j/manifests/1-1.json"]


def test_job_may_describe_another_kafka_cluster_but_not_fetch_from_it() -> None:
    told: list[str] = []
    other_kafka = OtherClusterFaults(told.append)
    other_kafka.decide(Call(Api.METADATA, "slot"))
    other_kafka.decide(Call(Api.LIST_TRANSACTIONS, "slot"))
    assert told == []
    other_kafka.decide(Call(Api.FETCH, "slot"))
    assert told == ["slot asks another Kafka cluster for Fetch"]


def plan(seed: int) -> Plan:
    return Plan.drawn(random.Random(f"{seed}/plan"))


def test_some_plans_have_mishaps_of_each_kind_and_none_of_them_has_a_blackout() -> None:
    plans = [plan(seed) for seed in SEEDS]
    some = [each for each in plans if each.mishaps]
    assert 0.1 < len(some) / len(plans) < 0.3
    kinds = Counter(mishap.kind for each in some for mishap in each.mishaps)
    assert kinds.keys() == set(mishaps.KINDS)
    for each in some:
        assert not each.fault_rates.blackout
        assert not (each.session_cluster and mishaps.REPLACED in {one.kind for one in each.mishaps})


MET = {
    mishaps.HANGS: ("a call never returns", f"ends with status {STORAGE_HANGS}"),
    mishaps.VANISHES: ("The storage is gone", "is back; the job continues"),
    mishaps.REPLACED: ("The storage is gone", "is back; the job continues"),
    mishaps.SLOTS_ELSEWHERE: ("StorageMismatchError",),
    mishaps.SLOTS_MISDIRECTED: ("ClusterMismatchError",),
}
"""Log texts of the processes that meet each kind of mishap."""


@pytest.mark.seeds
@pytest.mark.parametrize("kind", mishaps.KINDS)
def test_jobs_meet_each_kind_of_mishap_and_still_end(kind: str) -> None:
    said = Counter[str]()

    def listen(told: TraceEvent) -> None:
        line = str(told)
        said.update(sign for sign in MET[kind] if sign in line)

    for seed in seeds_with(kind, 10):
        outcome = run_seed(seed, listen=listen)
        assert outcome.violation is None, (
            f"python -m tests.simulator --seed {seed}: {outcome.violation}"
        )
    assert said.keys() == set(MET[kind])
