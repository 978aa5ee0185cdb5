"""The time for which a transaction may have to stay open, and the check against the broker's limit.

A transaction is opened after one barrier and prepared at the next. It may stay open through as many
failed checkpoints as are tolerable before one is published. Then it must survive an outage of Kafka
or of the job, and be ended. If the broker aborts it earlier, output is lost. So the limit is
checked at submit. `interval_when_idle` does not count: an idle job has no open transaction, and its
next record ends the idle time. The module is pure arithmetic. The transaction timeout of every
producer is exactly this time.
"""

from __future__ import annotations

from typing import Final

from tidegate.config import CheckpointSettings
from tidegate.errors import RefusedError

DEFAULT_BROKER_MAX_MS: Final = 900_000
"""Kafka's default for `transaction.max.timeout.ms`."""


def required_transaction_timeout_ms(settings: CheckpointSettings) -> int:
    """Return the time in milliseconds: (tolerable failed checkpoints + 1) x max(interval, interval
    during a backlog, timeout + pause) + timeout + tolerated outage.
    """
    longest_cycle = max(
        settings.interval, settings.interval_during_backlog, settings.timeout + settings.min_pause
    )
    cycles = settings.tolerable_failed_checkpoints + 1
    return cycles * longest_cycle + settings.timeout + settings.tolerated_outage


def check_against_broker(settings: CheckpointSettings, broker_max_ms: int) -> int:
    """Return the transaction timeout in milliseconds. RefusedError if it is above the broker's
    `transaction.max.timeout.ms`.
    """
    required = required_transaction_timeout_ms(settings)
    if required <= broker_max_ms:
        return required
    message = (
        f"The job's transactions may have to stay open for {_text(required)} = "
        f"({settings.tolerable_failed_checkpoints} tolerable_failed_checkpoints + 1) x max("
        f"interval {_text(settings.interval)}, interval_during_backlog "
        f"{_text(settings.interval_during_backlog)}, timeout {_text(settings.timeout)} + min_pause "
        f"{_text(settings.min_pause)}) + timeout {_text(settings.timeout)} + tolerated_outage "
        f"{_text(settings.tolerated_outage)}, but the broker aborts them after "
        f"{_text(broker_max_ms)} (transaction.max.timeout.ms), and output would be lost. Raise "
        f"that setting of the broker to {required} or more, or lower {_remedies(settings)}."
    )
    raise RefusedError(message)


def _remedies(settings: CheckpointSettings) -> str:
    """Return the settings that shorten the time, those of the longest cycle first."""
    cycles = {
        "interval": settings.interval,
        "interval_during_backlog": settings.interval_during_backlog,
        "min_pause": settings.timeout + settings.min_pause if settings.min_pause else 0,
    }
    longest = max(*cycles.values(), settings.timeout + settings.min_pause)
    names = [name for name, cycle in cycles.items() if cycle == longest]
    names.append("timeout")
    if settings.tolerable_failed_checkpoints:
        names.append("tolerable_failed_checkpoints")
    if settings.tolerated_outage:
        names.append("tolerated_outage")
    *others, last = (f"checkpoint.{name}" for name in names)
    return f"{', '.join(others)} or {last}" if others else last


def wave_timeout_ms(broker_max_ms: int | None, settings: CheckpointSettings) -> int:
    """Return the transaction timeout of a wave of a backfill: the maximum that the brokers allow.

    A live job prefers a short timeout, so that transactions of dead processes end soon. The next
    claim ends the transactions of a dead wave. If the principal may not read the brokers' maximum,
    the timeout is that of a live job, but at most Kafka's default for the maximum: a wave does not
    use the checkpoint interval, which can make the timeout longer than the brokers allow.
    """
    if broker_max_ms:
        return broker_max_ms
    return min(required_transaction_timeout_ms(settings), DEFAULT_BROKER_MAX_MS)


def _text(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
