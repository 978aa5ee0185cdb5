"""The one tree of errors.

Each class says two things beside its message: whose matter it is (`domain`: the user's, the
world's, ours) and what helps (`retry`: nothing, trying again after a pause, restoring the job from
its last publication). Both travel over RPC with the message, so that the JobMaster decides by value
and never by reading text. Expected outcomes (a checkpoint declined, a name already taken) are no
errors; they are returned values.

Foreign exceptions are translated into this tree once, at the door of the driver that calls the
foreign library, and around every call of user code. What still arrives untranslated is a resource
that the operating system refused, a disk, file or connection that failed (every other OSError), or
our own bug (`from_foreign`). `InternalError` is our own bug: it is raised by `check` and never
caught to go on.

`is_recoverable` is the one rule that decides which errors a restart of the job can help.
"""

from __future__ import annotations

import contextlib
import enum
import errno
from collections.abc import Iterator
from typing import ClassVar, Final


class Domain(enum.Enum):
    """Whose matter an error is."""

    USER = "user"
    EXTERNAL = "external"
    INTERNAL = "internal"


class Retry(enum.Enum):
    """What helps: nothing, the same call after a pause, or a restart from the last publication."""

    NO = "no"
    BACKOFF = "backoff"
    RESTORE = "restore"


class TidegateError(Exception):
    """Base of all errors of tidegate. The message is one paragraph: the thing, then the remedy."""

    domain: ClassVar[Domain] = Domain.INTERNAL
    retry: ClassVar[Retry] = Retry.NO


# --- the user's ---------------------------------------------------------------------------------


class UserError(TidegateError):
    """A mistake in code, configuration or set-up that only the user can mend."""

    domain = Domain.USER


class PipelineError(UserError):
    """A mistake in a pipeline's declaration or graph; found when it is read or built."""


class ConfigError(UserError):
    """An unknown key, a value of the wrong type or unit, settings that contradict each other."""


class RefusedError(UserError):
    """The cluster refuses a submit: nothing was started, nothing was changed."""


class NotAllowedError(RefusedError):
    """The job's principal lacks a right, or its credentials are refused; found at submit."""


class TopicAbsentError(RefusedError):
    """Kafka has no topic of this name, as far as the broker knows that was asked."""


class JobClosedError(RefusedError):
    """The journal is closed for this submission: the job has ended, and `outcome` says how.

    `stopped` is as in the journal's `Closed`.
    """

    def __init__(self, message: str, outcome: str = "failed", stopped: str = "") -> None:
        super().__init__(message)
        self.outcome, self.stopped = outcome, stopped


class CodeMismatchError(RefusedError):
    """A process sees a pipeline class that differs from the submitted one."""


class BadRecordError(UserError):
    """A record that its source's format cannot decode; names topic, partition and offset."""


class UserCodeError(UserError):
    """User code raised. The message names the step, and the record's origin where it processed one.

    User code is `process`, `open`, `close`, key functions, formats, and what runs when a process
    imports the pipeline and calls `define`.

    The job is restored from its last publication: what failed once may pass (a service that was
    down), and the restart strategy bounds how often that is tried.
    """

    retry = Retry.RESTORE


class StateValueError(UserError):
    """User code has put a value into state that no checkpoint can store: it is not of the declared
    type, or has no encoding. The message names step, state and key.

    A restart cannot help: the same records make the same value. Where the step has a policy
    (`on_error`), the record is refused whose call has made the value.
    """


class RecordTooLargeError(UserError):
    """A record that fits in no frame between slots, or is larger than its topic or its queue takes.

    The first names the edge and the record's origin.
    """


# --- the world's --------------------------------------------------------------------------------


class ExternalError(TidegateError):
    """Kafka, storage, the network or the operating system did not do what was asked."""

    domain = Domain.EXTERNAL
    retry = Retry.RESTORE


class KafkaError(ExternalError):
    """A broker refused or did not answer; the attempt ends and the job is restored."""


class KafkaUnavailableError(KafkaError):
    """No broker or coordinator answers just now; the same call may succeed after a pause."""

    retry = Retry.BACKOFF


class KafkaNotAuthorisedError(KafkaUnavailableError):
    """The job's principal lacks a right, or its credentials are refused, while the job runs.

    Treated as an outage, because what was taken away by mistake is given back; at submit the same
    finding is a RefusedError.
    """


class StorageError(ExternalError):
    """The checkpoint storage failed or its answer is not known; the same call may be repeated."""

    retry = Retry.BACKOFF


class ResourceExhaustedError(ExternalError):
    """The operating system refused memory, disk space, a file, a thread or a process.

    Others on the host may free some, and a restarted job may run on another host.
    """


class SystemCallError(ExternalError):
    """The operating system could not do something: a disk, a mount, a file or a connection failed.

    What fails once may work after a restart, on this host or on another one.
    """


class ClusterMismatchError(KafkaError):
    """A process of the job sees another Kafka cluster than the attempt, or than the submission
    began on. It restarts by its strategy: the operator can correct an address while it waits.
    """


class StorageMismatchError(ExternalError):
    """A host sees another checkpoint storage than the JobMaster. The job restarts by its strategy:
    the operator can correct a mount while it waits.
    """


class JournalLostError(ExternalError):
    """The checkpoint storage does not hold a journal, or claims, that the job has written.

    The job starts from nothing only by a new submission. It restarts by its strategy: the storage
    may come back.
    """


class StorageGoneError(StorageError):
    """The folder of the checkpoint storage is gone, or another storage is behind its path."""


class CheckpointError(ExternalError):
    """More checkpoints in a row failed than are tolerable; the attempt ends."""


class OutcomeUnknownError(ExternalError):
    """It is not known whether a journal entry was written: the attempt ends, the next claim
    decides.
    """


class CorruptCheckpointError(ExternalError):
    """A file of a checkpoint or of the journal is missing, torn or fails its checksum."""

    retry = Retry.NO


class TransactionError(ExternalError):
    """A producer or its transaction is not as it must be; the attempt ends before anything is
    lost.
    """


class SourceChangedError(ExternalError):
    """A topic that the job reads was deleted, created again or has lost records, so that the job's
    offsets are not those of its records any more.

    `finding` names what was found and where, without offsets: two errors of one finding are equal
    in it while the topic is written to. A leader that was elected a moment ago may say so by
    mistake; it is final when the leaders repeat it (`checkpoint/confirmation`).
    """

    retry = Retry.NO

    def __init__(self, message: str, finding: str = "") -> None:
        super().__init__(message)
        self.finding = finding


class RpcError(ExternalError):
    """A process of the cluster did not answer in time or is gone."""

    retry = Retry.BACKOFF


class ExchangeError(ExternalError):
    """The connection to another slot is lost, or what came over it is no frame of this attempt."""


class IncompleteWaveError(ExternalError):
    """The parts of a wave do not fit together: Spark ran a task again after others had read what
    its first run wrote, or rows are missing. Nothing is published, and the wave runs again.
    """


class SparkError(ExternalError):
    """Spark did not start, its master does not answer, or a job failed more often than it retries.

    A new session and the same wave again may succeed.
    """


class SparkLostError(SparkError):
    """The JVM of the Spark session has ended. This session runs no more waves; a new run of the
    backfill starts another one and continues.
    """

    retry = Retry.NO


class StartFailedError(ExternalError):
    """The job's JobMaster ended several times in a row before it reported anything."""

    retry = Retry.NO


class DataLossError(ExternalError):
    """A named transaction was aborted by the broker: the job stays failed until this is
    accepted.
    """

    retry = Retry.NO


class FencedError(ExternalError):
    """A newer claim stands in the journal: this process must exit and never claim again."""

    retry = Retry.NO


# --- ours ---------------------------------------------------------------------------------------


class InternalError(TidegateError):
    """Our own bug: an invariant does not hold. Never caught to go on."""


# --- rules --------------------------------------------------------------------------------------


def is_recoverable(error: TidegateError) -> bool:
    """Whether a restart of the job from its last checkpoint can help.

    A restart cannot help a mistake in the declaration, lost data, a damaged checkpoint, an attempt
    that was fenced, or a bug of ours.
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
    """What the operating system refused, if that is why this exception was raised."""
    if isinstance(error, MemoryError):
        return "memory"
    if isinstance(error, RuntimeError) and str(error).startswith("can't start new thread"):
        return "a thread"
    if isinstance(error, OSError) and error.errno is not None:
        return _REFUSED_BY_THE_SYSTEM.get(error.errno)
    return None


def from_foreign(error: BaseException) -> TidegateError:
    """The error of this tree that an exception is, wherever nobody has translated it.

    ResourceExhaustedError where the operating system refused a resource, SystemCallError for any
    other OSError, else InternalError. An OSError may be a bug of ours too, but nothing tells that
    from a disk that failed, and a restart is safe after both.
    """
    if isinstance(error, TidegateError):
        return error
    refused = refused_resource(error)
    described = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if refused is not None:
        return ResourceExhaustedError(
            f"The operating system refused {refused} ({described}). The job restarts from its last "
            "checkpoint. If this happens again, give the host more of it, or run fewer slots there."
        )
    if isinstance(error, OSError):
        return SystemCallError(
            f"A call of the operating system failed ({described}). The job restarts from its last "
            "checkpoint. If this happens again, look at the disks, mounts and network of the host."
        )
    return InternalError(described)


@contextlib.contextmanager
def foreign_translated() -> Iterator[None]:
    """Within it, a failure of the operating system is raised as an error of this tree.

    The errors are those of `from_foreign`. Any other exception is our own bug and stays what it is,
    with its traceback. As a decorator it does this for a whole function.
    """
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        known = from_foreign(error)
        if isinstance(known, InternalError):
            raise
        raise known from error


def check(holds: object, message: str) -> None:
    """Raise `InternalError(message)` unless `holds`.

    For invariants that stay on in production: Python's own assert vanishes under -O.
    """
    if not holds:
        raise InternalError(message)


def check_complete(results: int, values: int) -> None:
    """StopIteration unless user code has given as many results as there were values: what raises it
    inside of `map` ends the `map` without an error, and fewer results are the only trace of that.
    """
    if results != values:
        raise StopIteration("next() found no item; give it a default or raise another exception")


def encodable(text: str) -> str:
    r"""The text as UTF-8 can have it: half of a surrogate pair, as JSON's `"\ud800"` gives it and
    user code may quote it, becomes its escape.
    """
    return text.encode(errors="backslashreplace").decode()
