"""The contract of `ports/blobs.py`: what every checkpoint storage does.

A test class of a driver inherits it and says how a store is opened, and in what surroundings. No
test of its own runs from here.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.contracts.surroundings import Surroundings
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.ports.threads import Event


class BlobStoreContract:
    """Inherit, and override the fixture `store`."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> BlobStore:
        raise NotImplementedError

    @pytest.fixture
    def around(self) -> Surroundings:
        return Surroundings()

    def test_a_name_is_created_once_and_keeps_its_first_content(self, store: BlobStore) -> None:
        assert store.create("job/journal/1.json", b"first") is CreateResult.CREATED
        assert store.create("job/journal/1.json", b"second") is CreateResult.EXISTS
        assert store.create("job/journal/1.json", b"first") is CreateResult.EXISTS
        assert store.get("job/journal/1.json") == b"first"

    def test_a_deleted_name_can_be_created_again(self, store: BlobStore) -> None:
        store.create("a/b", b"1")
        store.delete("a/b")
        assert store.get("a/b") is None
        assert store.create("a/b", b"2") is CreateResult.CREATED

    def test_create_sees_what_put_has_written(self, store: BlobStore) -> None:
        store.put("a/b", b"1")
        assert store.create("a/b", b"2") is CreateResult.EXISTS

    def test_of_many_creates_at_once_exactly_one_is_created(
        self, store: BlobStore, around: Surroundings
    ) -> None:
        for round_ in range(20):
            outcomes: list[tuple[CreateResult, bytes]] = []
            start = around.event()

            def create(
                mine: bytes,
                path: str = f"race/{round_}",
                outcomes: list[tuple[CreateResult, bytes]] = outcomes,
                start: Event = start,
            ) -> None:
                start.wait()
                outcomes.append((store.create(path, mine), mine))

            joins = [around.beside(partial(create, b"%d" % number)) for number in range(8)]
            start.set()
            for join in joins:
                join()
            counts = Counter(outcome for outcome, _ in outcomes)
            assert counts == {CreateResult.CREATED: 1, CreateResult.EXISTS: 7}
            winner = next(mine for outcome, mine in outcomes if outcome is CreateResult.CREATED)
            assert store.get(f"race/{round_}") == winner

    def test_put_replaces(self, store: BlobStore) -> None:
        store.put("a", b"1")
        store.put("a", b"")
        assert store.get("a") == b""

    def test_what_is_not_there_is_none(self, store: BlobStore, tmp_path: Path) -> None:
        assert store.get("nowhere/nothing") is None
        assert not store.get_file("nowhere/nothing", tmp_path / "target")
        assert not (tmp_path / "target").exists()
        assert store.list("nowhere") == []
        store.delete("nowhere/nothing")

    def test_files_go_in_and_out(self, store: BlobStore, tmp_path: Path) -> None:
        source = tmp_path / "source"
        data = bytes(range(256)) * 40_000  # 10 MB: more than one chunk
        source.write_bytes(data)
        store.put_file("job/files/1/a.sst", source)
        assert source.read_bytes() == data
        source.write_bytes(b"changed later")
        assert store.get("job/files/1/a.sst") == data
        assert store.get_file("job/files/1/a.sst", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data

    def test_a_file_that_is_not_there_is_an_error(self, store: BlobStore, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="job/files/x"):
            store.put_file("job/files/x", tmp_path / "missing")
        assert store.get("job/files/x") is None

    def test_a_target_in_no_folder_is_an_error(self, store: BlobStore, tmp_path: Path) -> None:
        store.put("a", b"1")
        with pytest.raises(StorageError):
            store.get_file("a", tmp_path / "no-folder" / "target")

    def test_list_gives_what_is_below_a_folder_sorted(self, store: BlobStore) -> None:
        for path in ("b/2", "b/1/x", "b/10", "bb/1", "a"):
            store.put(path, b"")
        assert store.list("b") == ["b/1/x", "b/10", "b/2"]
        assert store.list("b/1") == ["b/1/x"]

    def test_deleting_leaves_neighbours(self, store: BlobStore) -> None:
        store.put("a/b/1", b"")
        store.put("a/c", b"")
        store.delete("a/b/1")
        store.delete("a/b/1")
        assert store.list("a") == ["a/c"]

    def test_the_probe_passes_and_leaves_nothing(self, store: BlobStore) -> None:
        store.probe()
        assert store.list("probe") == []

    def test_a_storage_has_one_identity(self, store: BlobStore) -> None:
        assert store.identify() == store.identify()
        store.confirm()
        store.put("a", b"1")
        assert store.get("a") == b"1"

    def test_a_storage_that_is_not_the_expected_one_is_refused(self, store: BlobStore) -> None:
        own = store.identify()
        store.bind("another")
        with pytest.raises(StorageGoneError):
            store.confirm()
        store.bind(own)
        store.confirm()

    def test_several_threads_write_at_once(self, store: BlobStore, around: Surroundings) -> None:
        def work(number: int) -> None:
            for i in range(30):
                store.put(f"shared/{number}/{i}", b"x" * i)
                store.put("shared/one", b"%d" % number)
                store.delete(f"shared/{number}/{i}")

        for join in [around.beside(partial(work, number)) for number in range(6)]:
            join()
        assert store.list("shared") == ["shared/one"]
