"""The contract of `ports/blobs.py`: what every checkpoint storage does.

A test class of a driver inherits it and says how a store is opened, and in what surroundings. No
test of its own runs from here.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.contracts.surroundings import ContractEnvironment
from tidegate.errors import StorageError, StorageGoneError
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.ports.threads import Event


class BlobStoreContract:
    """Inherit, and override the fixture `store`."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> BlobStore:
        raise NotImplementedError

    @pytest.fixture
    def environment(self) -> ContractEnvironment:
        return ContractEnvironment()

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

    def test_exactly_one_of_many_parallel_creates_succeeds(
        self, store: BlobStore, environment: ContractEnvironment
    ) -> None:
        for round_ in range(20):
            outcomes: list[tuple[CreateResult, bytes]] = []
            start = environment.event()

            def create(
                mine: bytes,
                path: str = f"race/{round_}",
                outcomes: list[tuple[CreateResult, bytes]] = outcomes,
                start: Event = start,
            ) -> None:
                start.wait()
                outcomes.append((store.create(path, mine), mine))

            joins = [
                environment.run_in_parallel(partial(create, b"%d" % number)) for number in range(8)
            ]
            start.set()
            for join in joins:
                join()
            counts = Counter(outcome for outcome, _ in outcomes)
            assert counts == {CreateResult.CREATED: 1, CreateResult.EXISTS: 7}
            winner = next(mine for outcome, mine in outcomes if outcome is CreateResult.CREATED)
            assert store.get(f"race/{round_}") == winner

    def test_put_replaces_the_content(self, store: BlobStore) -> None:
        store.put("a", b"1")
        store.put("a", b"")
        assert store.get("a") == b""

    def test_missing_blob_is_none_and_its_delete_is_no_error(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        assert store.get("nowhere/nothing") is None
        assert not store.get_file("nowhere/nothing", tmp_path / "target")
        assert not (tmp_path / "target").exists()
        assert store.list("nowhere") == []
        store.delete("nowhere/nothing")

    def test_put_file_and_get_file_keep_the_content(self, store: BlobStore, tmp_path: Path) -> None:
        source = tmp_path / "source"
        data = bytes(range(256)) * 40_000  # 10 MB: more than one chunk
        source.write_bytes(data)
        store.put_file("job/files/1/a.sst", source)
        assert source.read_bytes() == data
        source.write_bytes(b"changed later")
        assert store.get("job/files/1/a.sst") == data
        assert store.get_file("job/files/1/a.sst", tmp_path / "target")
        assert (tmp_path / "target").read_bytes() == data

    def test_put_file_of_a_missing_file_is_an_error(self, store: BlobStore, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="job/files/x"):
            store.put_file("job/files/x", tmp_path / "missing")
        assert store.get("job/files/x") is None

    def test_get_file_into_a_missing_folder_is_an_error(
        self, store: BlobStore, tmp_path: Path
    ) -> None:
        store.put("a", b"1")
        with pytest.raises(StorageError):
            store.get_file("a", tmp_path / "no-folder" / "target")

    def test_list_returns_the_sorted_names_below_a_folder(self, store: BlobStore) -> None:
        for path in ("b/2", "b/1/x", "b/10", "bb/1", "a"):
            store.put(path, b"")
        assert store.list("b") == ["b/1/x", "b/10", "b/2"]
        assert store.list("b/1") == ["b/1/x"]

    def test_delete_keeps_other_blobs_and_may_be_repeated(self, store: BlobStore) -> None:
        store.put("a/b/1", b"")
        store.put("a/c", b"")
        store.delete("a/b/1")
        store.delete("a/b/1")
        assert store.list("a") == ["a/c"]

    def test_probe_passes_and_leaves_no_blob(self, store: BlobStore) -> None:
        store.probe()
        assert store.list("probe") == []

    def test_storage_has_a_stable_identity(self, store: BlobStore) -> None:
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

    def test_several_threads_write_at_once(
        self, store: BlobStore, environment: ContractEnvironment
    ) -> None:
        def work(number: int) -> None:
            for i in range(30):
                store.put(f"shared/{number}/{i}", b"x" * i)
                store.put("shared/one", b"%d" % number)
                store.delete(f"shared/{number}/{i}")

        for join in [environment.run_in_parallel(partial(work, number)) for number in range(6)]:
            join()
        assert store.list("shared") == ["shared/one"]
