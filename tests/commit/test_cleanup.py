"""Manifests as files, and which files are deleted."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.commit.quiet import Answer, ProcedureRunner, manifest
from tests.commit.world import JOB
from tidegate.checkpoint.manifest import manifest_path
from tidegate.commit import effects
from tidegate.commit.cleanup import CheckpointCleanup, clean_up
from tidegate.commit.effects import Effect
from tidegate.commit.journal.entries import (
    encode_entry,
    entry_path,
)
from tidegate.commit.publish import load_manifest
from tidegate.commit.recover import close
from tidegate.errors import (
    CorruptCheckpointError,
    FencedError,
    StorageError,
)
from tidegate.ids import CheckpointId


@pytest.fixture
def quiet() -> ProcedureRunner:
    return ProcedureRunner()


def test_manifest_load_fails_if_the_file_is_torn_exchanged_or_missing(
    quiet: ProcedureRunner,
) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1)
    ref = journal.state.recent_checkpoints[-1]
    assert quiet.run(load_manifest(ref)) == manifest(journal, 1)
    objects, path = quiet.world.store.objects, manifest_path(JOB, ref.checkpoint)
    whole = objects[path]
    quiet.publish(journal, 2)
    for data, why in (
        (whole[:-30], "torn or was edited"),
        (objects[manifest_path(JOB, CheckpointId(journal.attempt, 2))], "not the file that"),
        (None, "is missing"),
    ):
        objects.pop(path)
        if data is not None:
            objects[path] = data
        with pytest.raises(CorruptCheckpointError, match=rf"{path} .*{why}.*--restore ID"):
            quiet.run(load_manifest(ref))
        objects[path] = whole


def put(quiet: ProcedureRunner, *paths: str) -> None:
    for path in paths:
        quiet.world.store.objects[f"job/{path}"] = b""


def present(quiet: ProcedureRunner) -> list[str]:
    return sorted(p for p in quiet.world.store.objects if "/files/" in p or "/manifests/" in p)


def with_files(quiet: ProcedureRunner) -> Answer:
    def answer(effect: Effect) -> Any:
        objects = quiet.world.store.objects
        if isinstance(effect, effects.ListObjects):
            return sorted(path for path in objects if path.startswith(effect.prefix + "/"))
        if isinstance(effect, effects.DeleteObject):
            objects.pop(effect.path, None)
            return None
        return NotImplemented

    return answer


def test_cleanup_deletes_only_files_that_no_retained_checkpoint_needs(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    put(quiet, "files/1/v/0/total/a", "files/1/v/0/total/b", "files/1/v/0/total/orphan")
    quiet.publish(older, 1, files=("files/1/v/0/total/a",))
    quiet.publish(older, 2, files=("files/1/v/0/total/a", "files/1/v/0/total/b"))
    journal = quiet.claim()
    cleaning, answer = CheckpointCleanup(), with_files(quiet)

    def clean() -> tuple[str, ...]:
        return quiet.run(clean_up(journal, cleaning, retained=2), answer)

    assert clean() == (), "nothing before a publication of its own"
    put(quiet, "files/2/zombie", "files/4/v/0/total/c", "files/9/newer", "files/strange")
    assert journal.attempt == 4
    quiet.publish(journal, 1, files=("files/1/v/0/total/b", "files/4/v/0/total/c"))
    assert clean() == (
        "job/manifests/1-1.json",
        "job/files/1/v/0/total/orphan",
        "job/files/2/zombie",
    )
    put(quiet, "files/4/v/0/total/just-uploaded")
    quiet.publish(journal, 2, files=("files/4/v/0/total/c",))
    assert clean() == ("job/manifests/1-2.json", "job/files/1/v/0/total/a")
    quiet.publish(journal, 3, files=())
    assert clean() == ("job/manifests/4-1.json", "job/files/1/v/0/total/b")
    assert clean() == ()
    assert present(quiet) == [
        "job/files/4/v/0/total/c",
        "job/files/4/v/0/total/just-uploaded",
        "job/files/9/newer",
        "job/files/strange",
        "job/manifests/4-2.json",
        "job/manifests/4-3.json",
    ]


def test_cleanup_keeps_files_that_a_rollback_may_need(quiet: ProcedureRunner) -> None:
    older = quiet.claim()
    put(quiet, "files/1/a", "files/1/b", "files/1/orphan")
    quiet.publish(older, 1, files=("files/1/a",))
    quiet.publish(older, 2, files=("files/1/b",))
    journal, cleaning = quiet.claim(), CheckpointCleanup()
    quiet.publish(journal, 1)
    for record in range(2):
        quiet.publish(journal, 2 + record, *quiet.prepared(journal, record))
        assert quiet.run(clean_up(journal, cleaning, retained=2), with_files(quiet)) == ()
    quiet.commit(journal)
    assert len(quiet.run(clean_up(journal, cleaning, retained=2), with_files(quiet))) == 6


def test_cleanup_deletes_a_rolled_back_checkpoint_after_the_next_publication(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    put(quiet, "files/1/a", "files/1/b")
    quiet.publish(older, 1, files=("files/1/a",))
    named = quiet.prepared(older, 0)
    quiet.publish(older, 2, *named, files=("files/1/a", "files/1/b"))
    quiet.world.arrive(named[0], commit=False)
    journal = quiet.claim()
    quiet.recover(journal)
    quiet.publish(journal, 1, files=("files/1/a",))
    assert quiet.run(clean_up(journal, CheckpointCleanup(), retained=2), with_files(quiet)) == (
        "job/manifests/1-2.json",
        "job/files/1/b",
    )


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("deletions", range(7))
def test_interrupted_cleanup_leaves_no_manifest_without_its_files(
    quiet: ProcedureRunner, deletions: int, *, restarts: bool
) -> None:
    """Or a restore of it by hand would claim the journal first and find it corrupt then."""
    journal, cleaning, answer = quiet.claim(), CheckpointCleanup(), with_files(quiet)
    files = {n: (f"files/1/shared-{(n + 1) // 2}", f"files/1/own-{n}") for n in range(1, 5)}
    put(quiet, *(file for both in files.values() for file in both))
    left = 0

    def breaks_off(effect: Effect) -> Any:
        nonlocal left
        if isinstance(effect, effects.DeleteObject):
            if left == 0:
                raise StorageError("gone")
            left -= 1
        return answer(effect)

    def clean(answer: Answer) -> None:
        quiet.run(clean_up(journal, cleaning, retained=2), answer)

    for counter, both in files.items():
        quiet.publish(journal, counter, files=both)
        with contextlib.suppress(StorageError):
            clean(breaks_off)
    if restarts:
        journal, cleaning = quiet.claim(), CheckpointCleanup()
    quiet.publish(journal, 5)
    left = deletions
    with pytest.raises(StorageError):
        clean(breaks_off)
    there = present(quiet)
    for counter, both in files.items():
        if f"job/manifests/1-{counter}.json" in there:
            assert {f"job/{file}" for file in both} <= set(there), counter
    quiet.publish(journal, 6)
    clean(answer)
    last = journal.attempt
    assert present(quiet) == [f"job/manifests/{last}-{counter}.json" for counter in (5, 6)]


def test_first_cleanup_keeps_files_uploaded_by_a_pending_checkpoint(quiet: ProcedureRunner) -> None:
    journal = quiet.claim()
    quiet.publish(journal, 1)
    put(quiet, f"files/{journal.attempt}/v/0/total/of-the-next-checkpoint")
    assert quiet.run(clean_up(journal, CheckpointCleanup(), retained=2), with_files(quiet)) == ()


def test_cleanup_lists_the_job_folder_only_at_every_twentieth_publication(
    quiet: ProcedureRunner,
) -> None:
    journal, cleaning = quiet.claim(), CheckpointCleanup()
    listings = []
    for counter in range(1, 42):
        quiet.publish(journal, counter)
        quiet.asked.clear()
        quiet.run(clean_up(journal, cleaning, retained=2), with_files(quiet))
        listings.append(sum(isinstance(effect, effects.ListObjects) for effect in quiet.asked))
    assert listings == [3, *[0] * 19] * 2 + [3], "files, manifests and initial offsets"


def test_cleanup_deletes_files_of_aborted_checkpoints_at_the_second_listing(
    quiet: ProcedureRunner,
) -> None:
    """A file of an aborted checkpoint may be in a later one; what is in none by then, is in no
    other.
    """
    journal, cleaning = quiet.claim(), CheckpointCleanup()
    own = f"files/{journal.attempt}/v/0/total"
    put(quiet, f"{own}/aborted", f"{own}/pending", f"manifests/{journal.attempt}-7.json")
    deleted: list[str] = []
    for counter in (1, *range(10, 30)):
        files = (f"{own}/pending",) if counter > 10 else ()
        quiet.publish(journal, counter, files=files)
        put(quiet, f"{own}/uploaded-since-{counter}")
        run = clean_up(journal, cleaning, retained=2)
        deleted += [path for path in quiet.run(run, with_files(quiet)) if "since" not in path]
    gone = {f"job/{own}/aborted", f"job/manifests/{journal.attempt}-7.json"}
    assert {path for path in deleted if "manifests" not in path or path in gone} == gone
    assert f"job/{own}/pending" in present(quiet)
    assert f"job/{own}/uploaded-since-29" in present(quiet), "not seen before the last listing"


def test_cleanup_keeps_older_files_if_a_retained_manifest_can_not_be_read(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim()
    put(quiet, "files/1/a", "files/1/orphan")
    quiet.publish(older, 1, files=("files/1/a",))
    quiet.world.store.objects["job/manifests/1-1.json"] = b"torn"
    journal = quiet.claim()
    quiet.publish(journal, 1)
    assert quiet.run(clean_up(journal, CheckpointCleanup(), retained=2), with_files(quiet)) == ()


def test_store_holds_the_encoded_bytes_of_a_journal_entry(quiet: ProcedureRunner) -> None:
    quiet.claim()
    (entry,) = quiet.entries()
    assert quiet.world.store.objects[entry_path(JOB, 1)] == encode_entry(entry)


def beginnings(quiet: ProcedureRunner) -> list[str]:
    return sorted(path for path in quiet.world.store.objects if "/beginnings/" in path)


def test_initial_offsets_are_deleted_when_a_publication_is_settled_and_not_before(
    quiet: ProcedureRunner,
) -> None:
    older = quiet.claim("s0")
    put(quiet, "beginnings/s0.json", "beginnings/left-by-an-older-version.json")
    quiet.publish(older, 1)
    journal, cleaning, answer = quiet.claim("s1"), CheckpointCleanup(), with_files(quiet)
    put(quiet, "beginnings/s1.json")
    clean_up_before = clean_up(journal, cleaning, retained=2)
    assert quiet.run(clean_up_before, answer) == (), "the last publication is of another attempt"
    quiet.publish(journal, 1, *quiet.prepared(journal, 0))
    assert quiet.run(clean_up(journal, cleaning, retained=2), answer) == ()
    assert len(beginnings(quiet)) == 3, "the publication may still be rolled back"
    quiet.commit(journal)
    quiet.run(clean_up(journal, cleaning, retained=2), answer)
    assert beginnings(quiet) == []


def test_cleanup_keeps_the_initial_offsets_of_a_newer_submission(quiet: ProcedureRunner) -> None:
    """The newer submission claims while the folder is listed, or directly before."""
    journal, answer = quiet.claim("s1"), with_files(quiet)
    quiet.publish(journal, 1)
    put(quiet, "beginnings/s1.json")

    def claimed_meanwhile(effect: Effect) -> Any:
        if isinstance(effect, effects.ListObjects) and effect.prefix.endswith("beginnings"):
            quiet.claim("s2")
            put(quiet, "beginnings/s2.json")
        return answer(effect)

    with pytest.raises(FencedError):
        quiet.run(clean_up(journal, CheckpointCleanup(), retained=2), claimed_meanwhile)
    assert beginnings(quiet) == ["job/beginnings/s1.json", "job/beginnings/s2.json"]


@pytest.mark.parametrize("outcome", ["finished", "failed", "canceled"])
@pytest.mark.parametrize("fails", [False, True])
def test_close_of_a_job_without_a_publication_deletes_its_initial_offsets_last(
    quiet: ProcedureRunner, outcome: str, *, fails: bool
) -> None:
    journal, answer = quiet.claim("s1"), with_files(quiet)
    put(quiet, "beginnings/s1.json", "beginnings/s2.json")

    def watched(effect: Effect) -> Any:
        if isinstance(effect, effects.DeleteObject):
            assert quiet.kinds()[-1] == "Closed", "a crash here must not lose the start"
            if fails:
                raise StorageError("gone")
        return answer(effect)

    quiet.run(close(journal, outcome), watched)
    kept = ["job/beginnings/s1.json"] if fails else []
    assert beginnings(quiet) == [*kept, "job/beginnings/s2.json"]
