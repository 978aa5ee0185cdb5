"""An error on the wire: its kind, what it says, and where it happened.

The receiver decides by `domain` and `retry`, and rebuilds an exception of the same class to raise
it further. Secrets are masked here, before the error leaves its process, and what UTF-8 does not
have is escaped. Unknown names (a newer sender) become the nearest base class of the same domain.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
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
    encodable,
    from_foreign,
)
from tidegate.masking import masked_text

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
    "DataLossError": errors.DataLossError,
    "DeposedError": errors.FencedError,
    "InternalError": errors.InternalError,
}
"""What stands in files and messages for each class, whatever the class is called in Python."""
_NAMES: Final = {kind: name for name, kind in KINDS.items()}

OURS: Final = (str(Path(errors.__file__).parent), "<fused ")
"""How the names of our own files begin, generated loops among them."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error as data."""

    kind: str
    domain: Domain
    retry: Retry
    message: str
    traceback: str = ""
    """Of a user's error: of their code where it failed, empty where none of it was involved."""

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Describe `error`, translated by `from_foreign` where nobody else has."""
        translated = from_foreign(error)
        if translated is error:
            trace = _traceback_of(translated)
        else:
            trace = "".join(traceback.format_exception(error))
        return cls(
            kind=kind_of(type(translated)),
            domain=translated.domain,
            retry=translated.retry,
            message=encodable(masked_text(str(translated))),
            traceback=encodable(masked_text(trace)),
        )

    def exception(self) -> TidegateError:
        """An exception of the reported class, to raise on this side."""
        known = KINDS.get(self.kind)
        if known is not None:
            return known(self.message)
        bases = {Domain.USER: UserError, Domain.EXTERNAL: ExternalError}
        return bases.get(self.domain, InternalError)(self.message)


def kind_of(error: type[TidegateError]) -> str:
    """The kind of a class in reports: its own, or that of its nearest base class that has one."""
    return next(_NAMES[base] for base in error.__mro__ if base in _NAMES)


def _traceback_of(error: TidegateError) -> str:
    cause = error.__cause__
    if cause is None:
        ours = isinstance(error, InternalError)
        return "".join(traceback.format_exception(error)) if ours else ""
    frames = cause.__traceback__
    if error.domain is Domain.USER:
        # Down to where the user's code begins; the way there is ours and says nothing to them.
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(OURS):
            frames = frames.tb_next
        if frames is None:
            return ""
    return "".join(traceback.format_exception(type(cause), cause, frames))
