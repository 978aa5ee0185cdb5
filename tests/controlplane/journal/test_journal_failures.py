"""Failures in the threads of the journal that no driver translates.

A failure of the operating system (OSError, MemoryError, a thread that cannot start) ends the
attempt, and the job restarts. A bug ends the process. Neither is lost in a pool's future.
"""

from __future__ import annotations

import errno
import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from tests.commit.quiet import manifest
from tests.controlplane.journal.test_journal_worker import at_offset, closed, entries, work
from tidegate.commit.effects import (
    CreateEntry,
    Effect,
    ListObjects,
    ListTransactions,
    TopicIds,
    WriteObject,
)
from tidegate.controlplane.journal.journal_worker import (
    CheckpointCommitted,
    CheckpointNotPublished,
    CheckpointPublished,
    JournalWorker,
    PublicationEvent,
    PublicationFailed,
)
from tidegate.errors import (
    InternalError,
    KafkaUnavailableError,
    OutcomeUnknownError,
    ResourceExhaustedError,
    SystemCallError,
    TidegateError,
    TransactionSystemError,
    is_recoverable,
)
from tidegate.ids import Attempt, CheckpointId

DISK_FAILED = OSError(errno.EIO, "Input/output error", "somewhere")
NO_FILES = OSError(errno.EMFILE, "Too many open files")


def failing(error: BaseException) -> Callable[..., NoReturn]:
    def fails(*_: object, **__: object) -> NoReturn:
        raise error

    return fails


def once(made: JournalWorker, kind: type[Effect], error: BaseException) -> None:
    """The next effect of a kind fails, those behind it do not."""
    actions = made.journal._runner()._actions
    real = actions[kind]

    def fails(_: Effect) -> NoReturn:
        actions[kind] = real
        raise error

    actions[kind] = fails


def claimed(posted: queue.SimpleQueue[Any]) -> JournalWorker:
    made = work(posted)
    made.journal.claimed = made.journal._claim()
    return made


# --- sweeps -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bug", [KeyError("a bug"), RuntimeError("a bug"), InternalError("a bug")], ids=repr
)
def test_a_bug_in_a_sweep_is_raised_in_the_loop(bug: Exception) -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    made.journal._runner()._actions[ListTransactions] = failing(bug)
    made.fence_zombies()
    with pytest.raises(type(bug), match="a bug"):
        posted.get(timeout=10)()


@pytest.mark.parametrize("error", [DISK_FAILED, NO_FILES], ids=repr)
def test_sweep_with_an_operating_system_error_is_logged_and_retried(
    error: OSError, caplog: pytest.LogCaptureFixture
) -> None:
    made = claimed(queue.SimpleQueue())
    fencings = queue.SimpleQueue[str]()
    once(made, ListTransactions, error)
    made.fence_zombies()
    made._zombie_fencing_pool.submit(lambda: fencings.put("the first one"))
    assert fencings.get(timeout=10) == "the first one"
    assert "the sweep failed and is repeated" in caplog.text

    def listing(_: ListTransactions) -> dict[str, str]:
        fencings.put("again")
        return {}

    made.journal._runner()._actions[ListTransactions] = listing
    made.fence_zombies()
    assert fencings.get(timeout=10) == "again"


# --- attempts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("foreign", "kind"),
    [
        (DISK_FAILED, SystemCallError),
        (NO_FILES, ResourceExhaustedError),
        (MemoryError(), ResourceExhaustedError),
        (RuntimeError("can't start new thread"), ResourceExhaustedError),
    ],
    ids=repr,
)
@pytest.mark.parametrize("where", ["an effect", "a driver"])
def test_operating_system_error_in_a_recovery_is_recoverable(
    foreign: Exception, kind: type[TidegateError], where: str
) -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    if where == "an effect":
        made.journal._runner()._actions[ListObjects] = failing(foreign)
    else:
        made.journal._effects = None
        cast("Any", made.journal._drivers).transaction_admin = failing(foreign)
    outcomes: list[Any] = []
    made.recover(cast("Any", SimpleNamespace(graph=[])), lambda _: None, outcomes.append)
    posted.get(timeout=10)()
    (outcome,) = outcomes
    assert type(outcome) is kind
    assert is_recoverable(outcome)
    assert outcome.__cause__ is foreign, "its traceback says where it came from"


def test_a_bug_in_a_recovery_is_raised_in_the_loop() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal._runner()._actions[ListObjects] = failing(KeyError("a bug"))
    made.recover(cast("Any", SimpleNamespace(graph=[])), lambda _: None, lambda _: None)
    with pytest.raises(KeyError, match="a bug"):
        posted.get(timeout=10)()


def test_ownership_check_with_an_operating_system_error_fails_the_attempt() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    made.journal._runner()._actions[ListObjects] = failing(DISK_FAILED)
    outcomes: list[object] = []
    made.check_ownership(outcomes.append)
    posted.get(timeout=10)()
    assert isinstance(outcomes[0], SystemCallError)


def published(
    made: JournalWorker, posted: queue.SimpleQueue[Any], last: type[PublicationEvent]
) -> list[PublicationEvent]:
    """Publishes a checkpoint. Returns its events up to one of the class `last`."""
    journal = made.journal.claimed
    assert journal is not None
    whole = at_offset(manifest(journal, 1), 7)
    cast("Any", made.journal)._manifest = lambda *_: whole
    made.journal._runner()._actions[TopicIds] = lambda _: {}
    events: list[PublicationEvent] = []
    complete = SimpleNamespace(checkpoint=whole.checkpoint, transactions=(), final=True)
    made.publish(cast("Any", complete), events.append)
    while not events or not isinstance(events[-1], last):
        posted.get(timeout=10)()
    return events


def test_checkpoint_is_published_and_committed_without_failures() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    checkpoint = CheckpointId(Attempt(1), 1)
    assert published(claimed(posted), posted, CheckpointCommitted) == [
        CheckpointPublished(checkpoint=checkpoint),
        CheckpointCommitted(checkpoint=checkpoint, final=True, committed=(), reusable=()),
    ]


@pytest.mark.parametrize("kind", [TransactionSystemError, KafkaUnavailableError])
def test_checkpoint_fails_and_the_attempt_goes_on_if_a_transaction_system_does_not_answer(
    kind: type[TransactionSystemError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is published, so the next checkpoint lists the same transactions again."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    no_answer = failing(kind("no coordinator"))
    monkeypatch.setattr("tidegate.controlplane.journal.job_journal.publish", no_answer)
    assert published(made, posted, CheckpointNotPublished) == [
        CheckpointNotPublished(checkpoint=CheckpointId(Attempt(1), 1), reason="no coordinator")
    ]
    assert made.journal.claimed is not None
    assert not made.journal.claimed.last_write_unknown


def test_operating_system_error_in_create_entry_marks_the_last_write_as_unknown() -> None:
    """It may have been carried out before it failed. A close that did not look would end by a state
    without that publication, and abort what it names.
    """
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    once(made, CreateEntry, DISK_FAILED)
    (failed,) = published(made, posted, PublicationFailed)
    assert isinstance(failed, PublicationFailed)
    assert isinstance(failed.error, SystemCallError)
    assert made.journal.claimed is not None
    assert made.journal.claimed.last_write_unknown
    assert closed(made, posted) is None
    assert made.journal._runner().run(entries()) == 3, "two claims and the close"


def test_operating_system_error_in_the_manifest_write_fails_the_attempt() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    once(made, WriteObject, DISK_FAILED)
    (failed,) = published(made, posted, PublicationFailed)
    assert isinstance(failed, PublicationFailed)
    assert isinstance(failed.error, SystemCallError)
    assert made.journal.claimed is not None
    assert not made.journal.claimed.last_write_unknown


def test_publication_with_an_unknown_outcome_fails_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another checkpoint could list transactions that the unknown entry already commits."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    unknown = OutcomeUnknownError("no answer")
    monkeypatch.setattr("tidegate.controlplane.journal.job_journal.publish", failing(unknown))
    assert published(made, posted, PublicationFailed) == [PublicationFailed(error=unknown)]


@pytest.mark.parametrize(
    ("step", "before"),
    [
        ("commit", [CheckpointPublished]),
        ("clean_up", [CheckpointPublished, CheckpointCommitted]),
    ],
)
def test_operating_system_error_after_the_publication_fails_the_attempt(
    step: str, before: list[type[PublicationEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    monkeypatch.setattr(f"tidegate.controlplane.journal.job_journal.{step}", failing(DISK_FAILED))
    *earlier, failed = published(made, posted, PublicationFailed)
    assert [type(event) for event in earlier] == before
    assert isinstance(failed, PublicationFailed)
    assert isinstance(failed.error, SystemCallError)


@pytest.mark.parametrize("kind", [CreateEntry, ListTransactions])
def test_close_is_retried_after_an_operating_system_error(
    kind: type[Effect],
) -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = claimed(posted)
    once(made, kind, NO_FILES)
    assert closed(made, posted) is None
    number = made.journal._runner().run(entries())
    assert number == (3 if kind is CreateEntry else 2), "a create that failed leaves a doubt"
