"""An error on the wire: its kind, its message, and where it happened.

The receiver decides by `domain` and `retry`. To raise the error again, it builds an exception of
the same class. Before an error leaves its process, secrets are masked here, characters that
UTF-8 cannot encode are escaped, and long texts are cut. An unknown name (from a newer sender)
becomes the base class of its domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from tidegate import errors
from tidegate.errors import (
    Domain,
    ExternalError,
    InternalError,
    Retry,
    TidegateError,
    UserError,
    from_foreign,
)
from tidegate.frames import is_own_file
from tidegate.user_exceptions import MESSAGE_MAX, text_of, traceback_of

KINDS: Final[Mapping[str, type[TidegateError]]] = {
    "TidegateError": errors.TidegateError,
    "UserError": errors.UserError,
    "PipelineError": errors.PipelineError,
    "ConfigError": errors.ConfigError,
    "RefusedError": errors.RefusedError,
    "NotAllowedError": errors.NotAllowedError,
    "TopicAbsentError": errors.TopicAbsentError,
    "JobClosedError": errors.JobClosedError,
    "CodeMismatchError": errors.CodeMismatchError,
    "BadRecordError": errors.BadRecordError,
    "UserCodeError": errors.UserCodeError,
    "StateValueError": errors.StateValueError,
    "RecordTooLargeError": errors.RecordTooLargeError,
    "ExternalError": errors.ExternalError,
    "TransactionSystemError": errors.TransactionSystemError,
    "KafkaError": errors.KafkaError,
    "KafkaUnavailableError": errors.KafkaUnavailableError,
    "KafkaNotAuthorisedError": errors.KafkaNotAuthorisedError,
    "StorageError": errors.StorageError,
    "ResourceExhaustedError": errors.ResourceExhaustedError,
    "SystemCallError": errors.SystemCallError,
    "ClusterMismatchError": errors.ClusterMismatchError,
    "StorageMismatchError": errors.StorageMismatchError,
    "JournalLostError": errors.JournalLostError,
    "StorageGoneError": errors.StorageGoneError,
    "CheckpointError": errors.CheckpointError,
    "OutcomeUnknownError": errors.OutcomeUnknownError,
    "CorruptCheckpointError": errors.CorruptCheckpointError,
    "TransactionError": errors.TransactionError,
    "SourceChangedError": errors.SourceChangedError,
    "RpcError": errors.RpcError,
    "ExchangeError": errors.ExchangeError,
    "IncompleteWaveError": errors.IncompleteWaveError,
    "SparkError": errors.SparkError,
    "SparkLostError": errors.SparkLostError,
    "StartFailedError": errors.StartFailedError,
    "StopTimedOutError": errors.StopTimedOutError,
    "DataLossError": errors.DataLossError,
    "DeposedError": errors.FencedError,
    "InternalError": errors.InternalError,
}
"""The name of each class in files and messages. It does not change if the Python class is
renamed.
"""
_NAMES: Final = {kind: name for name, kind in KINDS.items()}


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as data."""

    kind: str
    domain: Domain
    retry: Retry
    message: str
    traceback: str = ""
    """The traceback of an error. For a user's error it begins in the user's code, and is empty if
    no user code was running.
    """

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Return a report of `error`. An exception that no other code has translated is translated
        by `from_foreign`.
        """
        translated = from_foreign(error)
        trace = _traceback_of(translated) if translated is error else traceback_of(error)
        return cls(
            kind=kind_of(type(translated)),
            domain=translated.domain,
            retry=translated.retry,
            message=text_of(translated, MESSAGE_MAX),
            traceback=trace,
        )

    def exception(self) -> TidegateError:
        """Return an exception of the reported class, so that the receiver can raise it."""
        known = KINDS.get(self.kind)
        if known is not None:
            return known(self.message)
        bases = {Domain.USER: UserError, Domain.EXTERNAL: ExternalError}
        return bases.get(self.domain, InternalError)(self.message)


def kind_of(error: type[TidegateError]) -> str:
    """Return the kind of a class in reports: its own, or that of its nearest base class that has
    one.
    """
    return next(_NAMES[base] for base in error.__mro__ if base in _NAMES)


def _traceback_of(error: TidegateError) -> str:
    cause = error.__cause__
    if cause is None:
        ours = isinstance(error, InternalError)
        return traceback_of(error) if ours else ""
    frames = cause.__traceback__
    if error.domain is Domain.USER:
        # Skip the frames of tidegate above the user's code, which do not help the user.
        while frames is not None and is_own_file(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        if frames is None:
            return ""
    return traceback_of(cause, frames)
