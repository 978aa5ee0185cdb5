"""Whether and when a failed attempt is followed by another.

Pure: time comes in as monotonic seconds, chance as a function. The JobMaster asks once per failed
attempt and waits for the answer before it claims again; None means that the job fails. It does not
ask about an error that no restart can help (`errors.is_recoverable`).

The strategies are Flink's: `exponential_delay` (the default; the delay begins anew after the job
ran quietly for `reset_after`), `fixed_delay`, `failure_rate` (so many failures within an interval
fail the job) and `none`. `attempts` bounds the restarts of the first two; None is without end.

The exponential delay is for a job that fails again as soon as it is started. One that runs for a
while between two failures (brokers that are restarted one by one, processes that are killed) waits
for a small part of that while only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tidegate.config import RestartSettings

RAN_S: Final = 20.0
"""An attempt that ran for so long did not fail of its start. `dispatcher/backoff.py` has the same
for processes."""
SHARE: Final = 0.05
"""The longest pause behind such an attempt, as a part of the time that it ran."""


class RestartStrategy(Protocol):
    """Asked once after each failed attempt."""

    def next_backoff(self, now_s: float) -> float | None:
        """Seconds to wait before the next attempt; None to fail the job."""
        ...


def restart_strategy(settings: RestartSettings, chance: Callable[[], float]) -> RestartStrategy:
    """The strategy that the configuration names; `chance` gives numbers from 0 to 1."""
    match settings.strategy:
        case "exponential_delay":
            return ExponentialDelay(settings, chance)
        case "fixed_delay":
            return FixedDelay(settings)
        case "failure_rate":
            return FailureRate(settings)
        case "none":
            return NoRestart()


class ExponentialDelay:
    """Each delay is `multiplier` times the one before, up to `max_delay`, give or take `jitter`."""

    def __init__(self, settings: RestartSettings, chance: Callable[[], float]) -> None:
        self._settings = settings
        self._chance = chance
        self._delay_s = settings.initial_delay / 1000
        self._restarts = 0
        self._last_start_s: float | None = None

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        settings = self._settings
        quiet_s = 0.0 if self._last_start_s is None else now_s - self._last_start_s
        if quiet_s >= settings.reset_after / 1000:
            self._delay_s = settings.initial_delay / 1000
            self._restarts = 0
        elif quiet_s >= RAN_S:
            shortest_s = settings.initial_delay / 1000
            self._delay_s = min(self._delay_s, max(SHARE * quiet_s, shortest_s))
        if self._restarts == settings.attempts:
            return None
        self._restarts += 1
        base_s = self._delay_s
        self._delay_s = min(base_s * settings.multiplier, settings.max_delay / 1000)
        # Jobs that failed together, of one broker say, must not all come back at the same moment.
        delay_s = base_s * (1 + settings.jitter * (2 * self._chance() - 1))
        self._last_start_s = now_s + delay_s
        return delay_s


class FixedDelay:
    """Always the same delay."""

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
    """The job fails with the `failures`-th failure within `failure_interval`."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._failed_s: deque[float] = deque(maxlen=settings.failures)

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        self._failed_s.append(now_s)
        full = len(self._failed_s) == self._settings.failures
        within = now_s - self._failed_s[0] <= self._settings.failure_interval / 1000
        if full and within:
            return None
        return self._settings.delay / 1000


class NoRestart:
    """The first failure fails the job."""

    def next_backoff(self, now_s: float) -> float | None:
        """See `RestartStrategy`."""
        del now_s
        return None
