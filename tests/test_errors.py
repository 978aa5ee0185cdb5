"""The error tree: which errors a restart can help, and what an untranslated exception is."""

from __future__ import annotations

import errno

import pytest

from tidegate import errors
from tidegate.errors import (
    CodeMismatchError,
    CorruptCheckpointError,
    DataLossError,
    Domain,
    ExternalError,
    FencedError,
    InternalError,
    KafkaUnavailableError,
    PipelineError,
    RefusedError,
    ResourceExhaustedError,
    StorageError,
    SystemCallError,
    TidegateError,
    UserCodeError,
    from_foreign,
    is_recoverable,
)
from tidegate.protocol.errors import KINDS, ErrorReport

CANNOT_START = RuntimeError("can't start new thread")


@pytest.mark.parametrize(
    "error",
    [
        UserCodeError("open() raised"),
        KafkaUnavailableError("away"),
        StorageError("full"),
        ExternalError("a slot is gone"),
        ResourceExhaustedError("no memory"),
        SystemCallError("a disk"),
    ],
)
def test_temporary_error_is_recoverable_by_a_restart(error: TidegateError) -> None:
    assert is_recoverable(error)


@pytest.mark.parametrize(
    "error",
    [
        DataLossError("lost"),
        RefusedError("no"),
        CodeMismatchError("other code"),
        PipelineError("no such module"),
        CorruptCheckpointError("torn"),
        FencedError("a newer claim"),
        InternalError("bug"),
    ],
)
def test_permanent_error_is_not_recoverable_by_a_restart(error: TidegateError) -> None:
    assert not is_recoverable(error)


@pytest.mark.parametrize(
    ("foreign", "words"),
    [
        (MemoryError(), r"refused memory \(MemoryError\)"),
        (OSError(errno.ENOSPC, "No space left", "state/x"), "refused disk space .*state/x"),
        (OSError(errno.EMFILE, "Too many open files"), "limit of the process"),
        (OSError(errno.ENFILE, "Too many open files"), "limit of the host"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "a process, a thread"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "refused memory"),
        (CANNOT_START, "refused a thread"),
    ],
)
def test_resource_refused_by_the_system_is_a_recoverable_error(
    foreign: Exception, words: str
) -> None:
    report = ErrorReport.of(foreign)
    assert report.kind == "ResourceExhaustedError"
    received = report.exception()
    with pytest.raises(ResourceExhaustedError, match=words):
        raise received
    assert is_recoverable(received)


@pytest.mark.parametrize(
    "foreign",
    [
        OSError(errno.EIO, "Input/output error", "state/x"),
        OSError(errno.ESTALE, "Stale file handle", "state/x"),
        OSError(errno.EROFS, "Read-only file system", "state/x"),
        PermissionError(errno.EACCES, "Permission denied", "state/x"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "state/x"),
        TimeoutError(errno.ETIMEDOUT, "Connection timed out"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        OSError(errno.EBADF, "Bad file descriptor"),
        OSError("no number"),
        TimeoutError(),
    ],
    ids=repr,
)
def test_failed_system_call_is_a_recoverable_error(foreign: OSError) -> None:
    """A disk, a mount or a connection may be well again when the job restarts."""
    report = ErrorReport.of(foreign)
    assert (report.kind, report.domain) == ("SystemCallError", Domain.EXTERNAL)
    assert f"({type(foreign).__name__}" in report.message
    assert str(foreign) in report.message, "the file and the reason are named"
    received = report.exception()
    assert type(received) is SystemCallError
    assert is_recoverable(received)


@pytest.mark.parametrize(
    "foreign", [KeyError("x"), RuntimeError("other"), AssertionError(), TypeError("x")], ids=repr
)
def test_any_other_foreign_exception_is_an_internal_error_and_not_recoverable(
    foreign: Exception,
) -> None:
    report = ErrorReport.of(foreign)
    assert report.kind == "InternalError"
    assert type(foreign).__name__ in report.message
    assert not is_recoverable(report.exception())


def test_tidegate_error_is_not_translated() -> None:
    error = UserCodeError("x")
    assert from_foreign(error) is error


def test_every_error_has_a_kind_that_does_not_depend_on_its_name() -> None:
    """The kind stands in stored results, so a renamed class must keep it."""
    classes = {
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, TidegateError)
    }
    assert set(KINDS.values()) == classes
    for kind, each in KINDS.items():
        assert ErrorReport.of(each("x")).kind == kind
        assert type(ErrorReport.of(each("x")).exception()) is each


def test_a_class_without_a_kind_is_reported_as_its_base_class() -> None:
    class OfAUser(UserCodeError):
        """A subclass that has no entry in KINDS."""

    assert ErrorReport.of(OfAUser("x")).kind == "UserCodeError"
