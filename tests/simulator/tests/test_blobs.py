"""The simulated checkpoint storage: the contract, and what faults leave behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.contracts.blobs import BlobStoreContract
from tests.contracts.surroundings import ContractEnvironment
from tests.simulator.blobs import MemoryBlobs, SimBlobStore, StorageVerdict
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.tests.contracts import Simulated, World, simulated
from tidegate.errors import StorageError
from tidegate.ports.blobs import CreateResult


class Slow:
    """Requests and answers take some time, drawn from the seed; nothing fails."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._rng = scheduler.random_for("storage")

    def of_storage(self, process: SimProcess, kind: str, path: str) -> StorageVerdict:
        del process, kind, path
        draw = self._rng.random
        return StorageVerdict(request_s=0.05 * draw(), answer_s=0.05 * draw())


@simulated
class TestSimBlobStore(Simulated, BlobStoreContract):
    @pytest.fixture
    def store(self, simulation: World) -> SimBlobStore:
        return SimBlobStore(MemoryBlobs(), simulation.process, Slow(simulation.scheduler))

    @pytest.fixture
    def environment(self, simulation: World) -> ContractEnvironment:
        return simulation.environment


class Always:
    """The same verdict for every request."""

    def __init__(self, verdict: StorageVerdict) -> None:
        self.verdict = verdict

    def of_storage(self, process: SimProcess, kind: str, path: str) -> StorageVerdict:
        del process, kind, path
        return self.verdict


def stored(verdict: StorageVerdict, act: Callable[[SimBlobStore], None]) -> dict[str, bytes]:
    """The objects that exist long after `act`, all of whose requests have this verdict."""
    world, blobs = World(0), MemoryBlobs()
    store = SimBlobStore(blobs, world.process, Always(verdict))

    def test() -> None:
        act(store)
        world.environment.clock.sleep(60.0)

    world.run(test)
    world.scheduler.close()
    return blobs.objects


def test_refused_storage_request_raises_an_error_and_changes_nothing() -> None:
    def act(store: SimBlobStore) -> None:
        with pytest.raises(StorageError, match="refuses: create a"):
            store.create("a", b"1")
        with pytest.raises(StorageError, match="refuses: put b"):
            store.put("b", b"1")

    assert stored(StorageVerdict(fails=True), act) == {}


def test_create_without_an_answer_is_unknown_and_takes_effect() -> None:
    def act(store: SimBlobStore) -> None:
        assert store.create("a", b"1") is CreateResult.UNKNOWN
        with pytest.raises(StorageError, match="does not answer: put b"):
            store.put("b", b"1")

    assert stored(StorageVerdict(timeout_s=1.0), act) == {"a": b"1", "b": b"1"}


def test_a_late_request_arrives_after_its_sender_has_given_up() -> None:
    def act(store: SimBlobStore) -> None:
        assert store.create("a", b"late") is CreateResult.UNKNOWN
        store._faults = Always(StorageVerdict())
        assert store.get("a") is None
        assert store.create("a", b"first") is CreateResult.CREATED

    # A create that arrives late finds the name taken.
    assert stored(StorageVerdict(request_s=5.0, timeout_s=1.0), act) == {"a": b"first"}


def test_a_lost_request_never_arrives() -> None:
    def act(store: SimBlobStore) -> None:
        assert store.create("a", b"1") is CreateResult.UNKNOWN

    assert stored(StorageVerdict(request_lost=True, timeout_s=1.0), act) == {}
