"""How long a procedure tries again: pauses that double up to a bound, and when to give up.

Giving up is always safe and never silent: the error that stood in the way is raised, the attempt
ends, and the next claim decides from what the journal and the broker then say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tidegate.checkpoint.effects import Procedure, now, pause
from tidegate.errors import KafkaError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Seconds: the first pause, the longest pause, and the time after which to give up."""

    pause_s: float = 0.005
    pause_max_s: float = 1.0
    timeout_s: float


COMMIT_RETRY: Final = RetryPolicy(timeout_s=660.0)
"""For ending what is named: the default transaction timeout (11 min), after which it is lost
anyway."""

FENCE_RETRY: Final = RetryPolicy(pause_s=0.05, timeout_s=300.0)
"""For listing and fencing: sources must not start before it is done, and a broker restarts in
this."""

DESCRIBE_RETRY: Final = RetryPolicy(pause_s=0.05, timeout_s=30.0)
"""For describing before a publication: giving up only fails the checkpoint."""

STORAGE_RETRY: Final = RetryPolicy(pause_s=0.05, timeout_s=120.0)
"""For a create whose outcome is unknown: one checkpoint timeout, then the attempt ends."""


class RetryLoop:
    """One series of tries."""

    __slots__ = ("_patience", "_pause_s", "_started_s")

    def __init__(self, patience: RetryPolicy) -> None:
        self._patience = patience
        self._pause_s = patience.pause_s
        self._started_s: float | None = None

    def wait(self) -> Procedure[bool]:
        """Pause, then True; or False when the time is over."""
        now_s = yield from now()
        if self._started_s is None:
            self._started_s = now_s
        if now_s - self._started_s >= self._patience.timeout_s:
            return False
        yield from pause(self._pause_s)
        self._pause_s = min(2 * self._pause_s, self._patience.pause_max_s)
        return True


def never() -> bool:
    """Nobody has given it up."""
    return False


def retry_kafka(
    call: Callable[[], Procedure[T]], patience: RetryPolicy, given_up: Callable[[], bool] = never
) -> Procedure[T]:
    """Repeat a call on any Kafka error until it succeeds, or patience ends, or `given_up` says that
    nobody needs the answer any more; then raise the last.
    """
    waiting = RetryLoop(patience)
    while True:
        try:
            return (yield from call())
        except KafkaError:
            if given_up() or not (yield from waiting.wait()):
                raise
