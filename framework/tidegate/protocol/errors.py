"""An error on the wire: its class by name, what it says, and where it happened.

The receiver decides by `domain` and `retry`, and rebuilds an exception of the same class to raise
it further. Unknown names (a newer sender) become the nearest base class of the same domain.
"""

from __future__ import annotations

import traceback

import msgspec

from tidegate import errors
from tidegate.errors import Domain, ExternalError, InternalError, Retry, TidegateError, UserError


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A TidegateError, or a bug of ours, as data."""

    kind: str
    domain: Domain
    retry: Retry
    message: str
    traceback: str = ""
    """Of the user's code where it failed; of ours only for an internal error."""

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Describe `error`; anything that is not a TidegateError is an internal error."""
        if isinstance(error, TidegateError):
            trace = error.__cause__ or (error if isinstance(error, InternalError) else None)
            return cls(
                kind=type(error).__name__,
                domain=error.domain,
                retry=error.retry,
                message=str(error),
                traceback="".join(traceback.format_exception(trace)) if trace else "",
            )
        return cls(
            kind="InternalError",
            domain=Domain.INTERNAL,
            retry=Retry.NO,
            message=f"{type(error).__name__}: {error}",
            traceback="".join(traceback.format_exception(error)),
        )

    def exception(self) -> TidegateError:
        """An exception of the reported class, to raise on this side."""
        known = getattr(errors, self.kind, None)
        if isinstance(known, type) and issubclass(known, TidegateError):
            return known(self.message)
        bases = {Domain.USER: UserError, Domain.EXTERNAL: ExternalError}
        return bases.get(self.domain, InternalError)(self.message)
