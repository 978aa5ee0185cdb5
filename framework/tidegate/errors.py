"""The error classes of tidegate, in one tree.

In addition to its message, each class states two facts. `domain` is the party responsible for the
error: the user, an external system, or tidegate itself. `retry` is the remedy: none, the same call
after a pause, or a restart of the job from its last checkpoint. Both travel over RPC with the
message. The JobMaster decides by these values and never reads the text. Expected outcomes, such as
a declined checkpoint or a name that is already taken, are not errors. They are return values.

A driver translates the exceptions of a foreign library into this tree where it calls the library.
Exceptions of user code are translated around every call of user code. `from_foreign` handles the
exceptions that remain. They have three causes: the operating system refused a resource, a disk,
file or connection failed (every other OSError), or tidegate has a bug. An `InternalError` is such a
bug. `check` raises it, and no code catches it in order to continue.

`is_recoverable` is the one rule that decides which errors a restart of the job can help.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Iterator
from typing import ClassVar, Final

from tidegate.user_exceptions import described, process_ends, text_of


class Domain(enum.Enum):
    """The party responsible for an error: the user, an external system, or tidegate itself."""

    USER = "user"
    EXTERNAL = "external"
    INTERNAL = "internal"


class Retry(enum.Enum):
    """The remedy for an error: none, the same call after a pause, or a restart of the job from its
    last checkpoint.
    """

    NO = "no"
    BACKOFF = "backoff"
    RESTART = "restore"


class TidegateError(Exception):
    """The base class of all errors of tidegate.

    The message is one paragraph. It says what happened, then what to do.
    """

    domain: ClassVar[Domain] = Domain.INTERNAL
    retry: ClassVar[Retry] = Retry.NO


# --- errors of the user -------------------------------------------------------------------------


class UserError(TidegateError):
    """A mistake in code, configuration or set-up that only the user can correct."""

    domain = Domain.USER


class PipelineError(UserError):
    """A mistake in the declaration or the graph of a pipeline. It is found when the pipeline is
    imported or its graph is built.
    """


class ConfigError(UserError):
    """A mistake in the settings: an unknown key, a value of the wrong type or unit, or a
    contradiction between settings.
    """


class RefusedError(UserError):
    """The cluster refuses a submit. Nothing was started, and nothing was changed."""


class NotAllowedError(RefusedError):
    """The job's principal lacks a right, or Kafka refuses its credentials. This is found at
    submit.
    """


class TopicAbsentError(RefusedError):
    """Kafka has no topic of this name, according to the broker that was asked."""


class JobClosedError(RefusedError):
    """The journal is closed for this submission, because the job has ended.

    `outcome` says how the job ended. `outcome` and `stopped` have the values of the journal entry
    `Closed`.
    """

    def __init__(self, message: str, outcome: str = "failed", stopped: str = "") -> None:
        super().__init__(message)
        self.outcome, self.stopped = outcome, stopped


class CodeMismatchError(RefusedError):
    """A process sees a pipeline class that differs from the submitted one."""


class BadRecordError(UserError):
    """A record that the format of its source cannot decode. The message names the topic, partition
    and offset.
    """


class UserCodeError(UserError):
    """An exception in user code. The message names the step. If user code was processing a record,
    the message also names the topic, partition and offset of the record.

    User code is `process`, `open`, `close`, key functions, formats, and the code that runs when a
    process imports the pipeline and calls `define`.

    The job restarts from its last checkpoint, because the next try may succeed, for example if a
    service was down. The restart strategy limits the number of restarts.
    """

    retry = Retry.RESTART


class StateValueError(UserError):
    """A value in state that no checkpoint can store: it does not have the declared type, or it has
    no encoding. User code has put it there. The message names the step, the state and the key.

    A restart cannot help, because the same records make the same value. If the step has an
    `on_error` policy, the record whose call made the value is refused.
    """


class RecordTooLargeError(UserError):
    """A record that is too large for a frame between slots, for its topic, or for the queue of the
    producer.

    If the record is too large for a frame, the message names the edge, and the topic, partition and
    offset of the record.
    """


# --- errors of external systems -----------------------------------------------------------------


class ExternalError(TidegateError):
    """A failure of Kafka, the storage, the network or the operating system."""

    domain = Domain.EXTERNAL
    retry = Retry.RESTART


class TransactionSystemError(ExternalError):
    """The system that holds a sink's transactions refused a request or did not answer. The same
    call may succeed after a pause.
    """

    retry = Retry.BACKOFF


class KafkaError(TransactionSystemError):
    """A broker refused a request or did not answer. The attempt ends, and the job restarts."""

    retry = Retry.RESTART


class KafkaUnavailableError(KafkaError):
    """An outage of Kafka: no broker or coordinator answers. The same call may succeed after a
    pause.
    """

    retry = Retry.BACKOFF


class KafkaNotAuthorisedError(KafkaUnavailableError):
    """The job's principal lacks a right, or Kafka refuses its credentials, while the job runs.

    The job treats this as an outage, because an operator can restore a right that was removed by
    mistake. At submit, the same problem is a RefusedError.
    """


class StorageError(ExternalError):
    """The checkpoint storage failed, or its answer is not known. The caller may repeat the same
    call.
    """

    retry = Retry.BACKOFF


class ResourceExhaustedError(ExternalError):
    """The operating system refused memory, disk space, a file, a thread or a process.

    Other processes on the host may release the resource. A restarted job may also run on another
    host.
    """


class SystemCallError(ExternalError):
    """A call of the operating system failed, because of a disk, a mount, a file or a connection.

    The same call may succeed after a restart, on this host or on another one.
    """


class ClusterMismatchError(KafkaError):
    """A process of the job reaches another Kafka cluster than the attempt does, or than the
    submission began on. The job restarts as its restart strategy says. While it waits, the operator
    can correct an address.
    """


class StorageMismatchError(ExternalError):
    """A host reaches another checkpoint storage than the JobMaster does. The job restarts as its
    restart strategy says. While it waits, the operator can correct a mount.
    """


class JournalLostError(ExternalError):
    """The checkpoint storage does not contain a journal, or claims, that the job has written.

    Only a new submission starts the job without state. Otherwise the job restarts as its
    restart strategy says, because the storage may become available again.
    """


class StorageGoneError(StorageError):
    """The folder of the checkpoint storage is gone, or its path leads to another storage."""


class CheckpointError(ExternalError):
    """The number of checkpoints that failed in a row is above
    `checkpoint.tolerable_failed_checkpoints`. The attempt ends.
    """


class OutcomeUnknownError(ExternalError):
    """The storage did not confirm whether it wrote a journal entry. The attempt ends, and the next
    claim reads whether the entry exists.
    """


class CorruptCheckpointError(ExternalError):
    """A file of a checkpoint or of the journal is missing or incomplete, or its checksum is
    wrong.
    """

    retry = Retry.NO


class TransactionError(ExternalError):
    """A producer or its transaction failed, or is in an unexpected state. The attempt ends before
    any data is lost.
    """


class SourceChangedError(ExternalError):
    """A topic that the job reads was deleted, was created again, or has lost records. The job's
    offsets no longer refer to the same records.

    `finding` describes the problem and its place, without offsets. So errors with the same cause
    have the same `finding`, even if producers write to the topic meanwhile. A newly elected leader
    may report such a problem by mistake. The error is final when the leaders have repeated it
    (`commit/confirmation`).
    """

    retry = Retry.NO

    def __init__(self, message: str, finding: str = "") -> None:
        super().__init__(message)
        self.finding = finding


class RpcError(ExternalError):
    """A process of the cluster did not answer in time, or it has ended."""

    retry = Retry.BACKOFF


class ExchangeError(ExternalError):
    """The connection to another slot failed, or it delivered data that is not a frame of this
    attempt.
    """


class IncompleteWaveError(ExternalError):
    """The parts of a wave do not match. Rows are missing, or Spark ran a task again after other
    tasks had read the output of its first run. Nothing is published, and the wave runs again.
    """


class SparkError(ExternalError):
    """A failure of Spark: it did not start, its master does not answer, or a Spark job failed after
    all its retries.

    The same wave may succeed in a new session.
    """


class SparkLostError(SparkError):
    """The JVM of the Spark session has ended. This session cannot run another wave. A new
    run of the backfill starts a new session and continues.
    """

    retry = Retry.NO


class StartFailedError(ExternalError):
    """The job's JobMaster ended several times in a row before it reported anything, or the storage
    failed from the start.
    """

    retry = Retry.NO


class StopTimedOutError(ExternalError):
    """A stop or a cancel has waited as long as it may for a storage or for brokers that are away.

    The job has ended, and its journal is not closed. Its next run settles what is left open.
    """

    retry = Retry.NO


class DataLossError(ExternalError):
    """The broker aborted a transaction of a published checkpoint. The job stays failed until the
    user accepts the loss.
    """

    retry = Retry.NO


class FencedError(ExternalError):
    """The journal contains a newer claim. This process must exit and must not claim again."""

    retry = Retry.NO


# --- bugs of tidegate ---------------------------------------------------------------------------


class InternalError(TidegateError):
    """A bug of tidegate: an invariant does not hold. No code catches it in order to continue."""


# --- rules --------------------------------------------------------------------------------------


def is_recoverable(error: TidegateError) -> bool:
    """Return whether a restart of the job from its last checkpoint can help.

    A restart does not help after a mistake in the declaration, lost data, a damaged checkpoint or a
    fenced attempt. It does not help after a bug of tidegate either.
    """
    return error.retry is not Retry.NO and error.domain is not Domain.INTERNAL


_REFUSED_BY_THE_SYSTEM: Final = {
    errno.ENOSPC: "disk space",
    errno.EDQUOT: "disk space (quota)",
    errno.ENOMEM: "memory",
    errno.EMFILE: "another open file (limit of the process)",
    errno.ENFILE: "another open file (limit of the host)",
    errno.EAGAIN: "a process, a thread or memory",
}


def refused_resource(error: BaseException) -> str | None:
    """Return the resource that the operating system refused, or None if the exception has another
    cause.
    """
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, RuntimeError) and text_of(error).startswith("can't start new thread"):
        return "a thread"
    if isinstance(error, OSError) and error.errno is not None:
        return _REFUSED_BY_THE_SYSTEM.get(error.errno)
    return None


def from_foreign(error: BaseException) -> TidegateError:
    """Return the error of this tree for an exception that may not be translated yet.

    An error of this tree is returned unchanged. The result is a ResourceExhaustedError if the
    operating system refused a resource, a SystemCallError for any other OSError, and an
    InternalError otherwise. A bug of tidegate can also raise an OSError. This function cannot
    distinguish such a bug from a failed disk, but a restart is safe in both cases.
    """
    if isinstance(error, TidegateError):
        return error
    refused = refused_resource(error)
    text = described(error)
    if refused is not None:
        return ResourceExhaustedError(
            f"The operating system refused {refused} ({text}). The job restarts from its last "
            "checkpoint. If this happens again, give the host more of it, or run fewer slots there."
        )
    if isinstance(error, OSError):
        return SystemCallError(
            f"A call of the operating system failed ({text}). The job restarts from its last "
            "checkpoint. If this happens again, look at the disks, mounts and network of the host."
        )
    return InternalError(text)


def signal_handler_error(signal_name: str, error: BaseException) -> UserCodeError:
    """Return the error for a signal handler of user code that has raised `error` while no user code
    was running.
    """
    failure = UserCodeError(
        f"A handler of user code for {signal_name} raised {described(error).rstrip('.')}, while no "
        "step was running. Let the handler raise nothing, or switch its signal off before the step "
        "returns; the job restarts from its last checkpoint as the restart strategy says."
    )
    failure.__cause__ = error
    return failure


@contextlib.contextmanager
def foreign_translated() -> Iterator[None]:
    """Translate failures of the operating system inside the `with` block into errors of this tree.

    The errors are those of `from_foreign`. Any other exception is a bug of tidegate. It passes
    unchanged, with its traceback. As a decorator, this translates the failures of a whole function.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        known = from_foreign(error)
        if isinstance(known, InternalError):
            raise
        raise known from error


def passes_through() -> tuple[type[BaseException], ...]:
    """Return the exceptions that pass through the code around a call of user code unchanged: errors
    of tidegate, which name their problem, and the end of the process.
    """
    return (TidegateError, *process_ends())


def check(holds: object, message: str) -> None:
    """Raise `InternalError(message)` unless `holds`.

    This check also runs in production. Python's own `assert` does nothing under `-O`.
    """
    if not holds:
        raise InternalError(message)


def check_complete(results: int, values: int) -> None:
    """Raise StopIteration unless user code has returned one result for each value.

    If user code raises StopIteration inside `map`, the `map` ends without an error. The only sign
    of this is that results are missing.
    """
    if results != values:
        raise StopIteration("next() found no item; give it a default or raise another exception")
