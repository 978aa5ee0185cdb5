"""The one tree of errors.

Each class says two things beside its message: whose matter it is (`domain`: the user's, the
world's, ours) and what helps (`retry`: nothing, trying again after a pause, restoring the job from
its last publication). Both travel over RPC with the message, so that the JobMaster decides by value
and never by reading text. Expected outcomes (a checkpoint declined, a name already taken) are no
errors; they are returned values.

Foreign exceptions are translated into this tree once, at the door of the driver that calls the
foreign library. `InternalError` is our own bug: it is raised by `check` and never caught to go on.
"""

from __future__ import annotations

import enum
from typing import ClassVar


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


class JobClosedError(RefusedError):
    """The journal is closed for this submission: the job has ended, and `outcome` says how."""

    def __init__(self, message: str, outcome: str = "failed") -> None:
        super().__init__(message)
        self.outcome = outcome


class CodeMismatchError(RefusedError):
    """A process sees a pipeline class that differs from the submitted one."""


class BadRecordError(UserError):
    """A record that its source's format cannot decode; names topic, partition and offset."""


class UserCodeError(UserError):
    """User code raised while it processed a record; names the step's uid and the record's origin.

    The job is restored from its last publication: what failed once may pass (a service that was
    down), and the restart strategy bounds how often that is tried.
    """

    retry = Retry.RESTORE


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


class RpcError(ExternalError):
    """A process of the cluster did not answer in time or is gone."""

    retry = Retry.BACKOFF


class ExchangeError(ExternalError):
    """The connection to another slot is lost, or what came over it is no frame of this attempt."""


class DataLossError(ExternalError):
    """A named transaction was aborted by the broker: the job stays failed until this is
    accepted.
    """

    retry = Retry.NO


class DeposedError(ExternalError):
    """A newer claim stands in the journal: this process must exit and never claim again."""

    retry = Retry.NO


# --- ours ---------------------------------------------------------------------------------------


class InternalError(TidegateError):
    """Our own bug: an invariant does not hold. Never caught to go on."""


def check(holds: object, message: str) -> None:
    """Raise `InternalError(message)` unless `holds`.

    For invariants that stay on in production: Python's own assert vanishes under -O.
    """
    if not holds:
        raise InternalError(message)
