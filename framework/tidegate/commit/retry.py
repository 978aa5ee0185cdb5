"""Retries of a procedure: pauses that double up to a limit, and the time after which it stops.

To stop is always safe and never silent. The error that prevented the call is raised and the attempt
ends. The next claim then decides from the journal and from the broker's answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidegate.commit.effects import Procedure, now, pause
from tidegate.errors import TransactionSystemError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The first pause, the longest pause, and the time after which the retries stop, in seconds."""

    pause_s: float = 0.005
    pause_max_s: float = 1.0
    timeout_s: float


COMMIT_RETRY: Final = RetryPolicy(timeout_s=660.0)
"""The retries to end listed transactions. Their time is the default transaction timeout (11 min),
after which the transactions are lost anyway.
"""

FENCE_RETRY: Final = RetryPolicy(pause_s=0.05, timeout_s=300.0)
"""The retries to list and fence. Sources must not start before this is done, and a broker restarts
within this time.
"""

DESCRIBE_RETRY: Final = RetryPolicy(pause_s=0.05, timeout_s=30.0)
"""The retries to describe before a publication. Their end only fails the checkpoint."""

STORAGE_RETRY: Final = RetryPolicy(pause_s=0.05, timeout_s=120.0)
"""The retries of a create whose outcome is unknown: one checkpoint timeout, then the
attempt ends.
"""


class RetryLoop:
    """A series of tries. Its time starts with the first `wait`."""

    __slots__ = ("_pause_s", "_policy", "_started_s")

    def __init__(self, retry_policy: RetryPolicy) -> None:
        self._policy = retry_policy
        self._pause_s = retry_policy.pause_s
        self._started_s: float | None = None

    def wait(self) -> Procedure[bool]:
        """Pause and return True; return False, without a pause, when the time is over."""
        now_s = yield from now()
        if self._started_s is None:
            self._started_s = now_s
        if now_s - self._started_s >= self._policy.timeout_s:
            return False
        yield from pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._policy.pause_max_s)
        return True


def never_canceled() -> bool:
    """Return False: the answer is still needed."""
    return False


def retry_request(
    call: Callable[[], Procedure[T]],
    retry_policy: RetryPolicy,
    is_canceled: Callable[[], bool] = never_canceled,
) -> Procedure[T]:
    """Repeat a call after any error of Kafka or another transaction system, and return its result.
    The last error is raised when the time of `retry_policy` is over, or when `is_canceled` returns
    True because the answer is no longer needed.
    """
    waiting = RetryLoop(retry_policy)
    while True:
        try:
            return (yield from call())
        except TransactionSystemError:
            if is_canceled() or not (yield from waiting.wait()):
                raise
