"""Restart strategies, which decide whether and when another attempt follows a failed one.

The module is pure: the caller passes the time as monotonic seconds, and chance as a function. The
JobMaster asks once per failed attempt, and waits for the returned delay before it deploys again.
None means that the job fails. The JobMaster does not ask if a restart cannot help
(`errors.is_recoverable`).

The strategies are those of Flink: `exponential_delay`, `fixed_delay`, `failure_rate` and `none`.
`exponential_delay` is the default; its delay starts again at the initial value after the job ran
without a failure for `reset_backoff_threshold`. `failure_rate` fails the job after a number of
failures within an interval. `attempts` limits the restarts of the first two strategies; None means
no limit.

The exponential delay is for a job that fails again as soon as it is started. Other jobs run for a
while between two failures, for example when brokers are restarted one by one or processes are
killed. Such a job waits only for a small part of the time that it ran.

A job that has never completed a checkpoint has lost nothing if it fails. So `StartFailures` ends
its restarts, whatever the strategy says, if its checkpoint storage or its local state cannot be
written for a minute: the disk is full, or a right is missing. A start on such a disk is refused for
the same reason. A running job has no such limit, because it continues when the disk has space.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tidegate.config import RestartSettings
from tidegate.errors import StartFailedError, StorageError, TidegateError
from tidegate.message_text import counted

RAN_S: Final = 20.0
"""The time in seconds after which a failure of an attempt is not blamed on its start.
`jobmanager/backoff.py` has the same rule for processes."""
START_FAILURES_S: Final = 60.0
"""The time in seconds for which a storage may fail before the first checkpoint."""
WORKED_S: Final = 300.0
"""The time in seconds without such a failure that shows that the storage has worked meanwhile. The
pause between two attempts is much shorter."""
SHARE: Final = 0.05
"""The longest delay after such an attempt, as a share of the time since it was due to start."""


class RestartStrategy(Protocol):
    """A restart strategy. The JobMaster asks it once after each failed attempt."""

    def next_backoff(self, now_s: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None to fail the job."""
        ...


def restart_strategy(settings: RestartSettings, random: Callable[[], float]) -> RestartStrategy:
    """Return the configured strategy. `random` returns random numbers from 0 to 1."""
    match settings.strategy:
        case "exponential_delay":
            return ExponentialDelay(settings, random)
        case "fixed_delay":
            return FixedDelay(settings)
        case "failure_rate":
            return FailureRate(settings)
        case "none":
            return NoRestart()


def final_message(message: str, settings: RestartSettings) -> str:
    """Return the message of the error that fails a job, without the promise of a restart."""
    match settings.strategy:
        case "none":
            why = 'restart.strategy is "none"'
        case "failure_rate":
            why = (
                f"{counted(settings.max_failures_per_interval, 'failure')} within "
                f"{settings.failure_rate_interval / 1000:g} s is the limit of restart.strategy "
                '"failure_rate"'
            )
        case _:
            why = f"restart.attempts is {settings.attempts}"
    return _PROMISE.sub(f". The job fails, because {why}.", message)


_PROMISE: Final = re.compile(
    r"[;.] [Tt]he job restarts from its last checkpoint as the restart strategy says\.$"
)
"""The end of the message of an error after which a job may restart."""


class StartFailures:
    """The failures of storages before the first completed checkpoint of a submission."""

    def __init__(self, *, is_first_start: bool) -> None:
        """`is_first_start` is false if an earlier JobMaster has claimed for the submission. It may
        have completed checkpoints.
        """
        self._counts = is_first_start
        self._since_s = self._last_s = -math.inf

    def started(self) -> None:
        """Record that a checkpoint is completed."""
        self._counts = False

    def judge(self, now_s: float, error: TidegateError) -> TidegateError:
        """Return the error of a failed attempt, or one that fails the job."""
        # Not a subclass: a storage that is gone, or that only this host lacks, may come later.
        if not self._counts or type(error) is not StorageError:
            return error
        if now_s - self._last_s > WORKED_S:
            self._since_s = now_s
        self._last_s = now_s
        if now_s - self._since_s < START_FAILURES_S:
            return error
        return StartFailedError(
            f"The job has not started, because its storage has failed for {START_FAILURES_S:g} s: "
            f"{error} The job fails, because this run has completed no checkpoint yet."
        )


class ExponentialDelay:
    """A strategy in which each delay is `backoff_multiplier` times the one before, up to
    `max_backoff`. Each delay is then changed at random by up to `jitter_factor`, a share of the
    delay.
    """

    def __init__(self, settings: RestartSettings, random: Callable[[], float]) -> None:
        self._settings = settings
        self._random = random
        self._delay_s = settings.initial_backoff / 1000
        self._restarts = 0
        self._last_start_s: float | None = None

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        settings = self._settings
        quiet_s = 0.0 if self._last_start_s is None else now_s - self._last_start_s
        if quiet_s >= settings.reset_backoff_threshold / 1000:
            self._delay_s = settings.initial_backoff / 1000
            self._restarts = 0
        elif quiet_s >= RAN_S:
            shortest_s = settings.initial_backoff / 1000
            self._delay_s = min(self._delay_s, max(SHARE * quiet_s, shortest_s))
        if self._restarts == settings.attempts:
            return None
        self._restarts += 1
        base_s = self._delay_s
        self._delay_s = min(base_s * settings.backoff_multiplier, settings.max_backoff / 1000)
        # Jobs that failed together, for example because of one broker, must not all restart at the
        # same time.
        delay_s = base_s * (1 + settings.jitter_factor * (2 * self._random() - 1))
        self._last_start_s = now_s + delay_s
        return delay_s


class FixedDelay:
    """A strategy in which all delays are the same."""

    def __init__(self, settings: RestartSettings) -> None:
        self._delay_s = settings.delay / 1000
        self._attempts = settings.attempts
        self._restarts = 0

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        del now_s
        if self._restarts == self._attempts:
            return None
        self._restarts += 1
        return self._delay_s


class FailureRate:
    """A strategy in which the job fails with the `failures`-th failure within
    `failure_rate_interval`.
    """

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._failed_s: deque[float] = deque(maxlen=settings.max_failures_per_interval)

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        self._failed_s.append(now_s)
        full = len(self._failed_s) == self._settings.max_failures_per_interval
        within = now_s - self._failed_s[0] <= self._settings.failure_rate_interval / 1000
        if full and within:
            return None
        return self._settings.delay / 1000


class NoRestart:
    """A strategy in which the first failure fails the job."""

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        del now_s
        return None
