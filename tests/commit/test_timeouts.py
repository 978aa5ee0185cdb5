"""How long transactions must be allowed to stay open, and the broker's say in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.commit.timeouts import (
    check_against_broker,
    required_transaction_timeout_ms,
    wave_timeout_ms,
)
from tidegate.config import CheckpointSettings
from tidegate.errors import RefusedError

STOCK_BROKER_MAX_MS = 900_000  # transaction.max.timeout.ms of Apache Kafka as shipped
MINUTE_MS = 60_000


def test_default_transaction_timeout_fits_a_stock_broker() -> None:
    required = required_transaction_timeout_ms(CheckpointSettings())
    assert required == 11 * MINUTE_MS
    assert check_against_broker(CheckpointSettings(), STOCK_BROKER_MAX_MS) == required


def test_required_transaction_timeout_follows_the_formula() -> None:
    settings = CheckpointSettings(
        interval=1_000,
        interval_during_backlog=2_500,
        timeout=2_000,
        min_pause=500,
        tolerable_failed_checkpoints=3,
        tolerated_outage=7_000,
    )
    assert required_transaction_timeout_ms(settings) == 4 * 2_500 + 2_000 + 7_000
    slow = replace(settings, interval=60_000)
    assert required_transaction_timeout_ms(slow) == 4 * 60_000 + 2_000 + 7_000
    behind = replace(settings, interval_during_backlog=30_000)
    assert required_transaction_timeout_ms(behind) == 4 * 30_000 + 2_000 + 7_000
    idle = replace(settings, interval_when_idle=40_000)
    assert required_transaction_timeout_ms(idle) == required_transaction_timeout_ms(settings)


def test_timeout_above_the_broker_maximum_is_refused_with_all_numbers() -> None:
    settings = CheckpointSettings(tolerable_failed_checkpoints=5)
    with pytest.raises(RefusedError) as caught:
        check_against_broker(settings, STOCK_BROKER_MAX_MS)
    description = str(caught.value)
    for part in (
        "1020 s = (5 tolerable_failed_checkpoints + 1) x max(interval 10 s, ",
        ", interval_during_backlog 3 s, ",
        "s, timeout 120 s + min_pause 0 s)",
        "+ timeout 120 s + tolerated_outage 180 s",
        "900 s (transaction.max.timeout.ms)",
        "to 1020000 or more",
        "checkpoint.tolerated_outage",
    ):
        assert part in description


def test_timeout_equal_to_the_broker_maximum_is_accepted() -> None:
    assert check_against_broker(CheckpointSettings(), 11 * MINUTE_MS) == 11 * MINUTE_MS
    with pytest.raises(RefusedError):
        check_against_broker(CheckpointSettings(), 11 * MINUTE_MS - 1)


@pytest.mark.parametrize(
    ("settings", "remedies"),
    [
        (
            CheckpointSettings(interval=400_000),
            "lower checkpoint.interval, checkpoint.timeout, checkpoint.tolerable_failed_",
        ),
        (
            CheckpointSettings(interval_during_backlog=800_000, tolerable_failed_checkpoints=0),
            "lower checkpoint.interval_during_backlog, checkpoint.timeout or checkpoint.tolerated_",
        ),
        (
            CheckpointSettings(interval=800_000, timeout=700_000, min_pause=100_000),
            "lower checkpoint.interval, checkpoint.min_pause, checkpoint.timeout, ",
        ),
        (
            CheckpointSettings(timeout=500_000, tolerable_failed_checkpoints=0, tolerated_outage=0),
            "lower checkpoint.timeout.",
        ),
    ],
)
def test_a_refused_timeout_names_the_settings_that_make_it_long(
    settings: CheckpointSettings, remedies: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        check_against_broker(settings, STOCK_BROKER_MAX_MS)
    assert f"to {required_transaction_timeout_ms(settings)} or more, or {remedies}" in str(
        caught.value
    )


def test_transactions_of_a_wave_may_be_open_as_long_as_the_brokers_allow() -> None:
    """Without the right to ask the brokers, live settings cannot make the timeout too long."""
    hourly = CheckpointSettings(interval=3_600_000)
    assert wave_timeout_ms(MINUTE_MS, CheckpointSettings()) == MINUTE_MS
    assert wave_timeout_ms(MINUTE_MS, hourly) == MINUTE_MS
    assert wave_timeout_ms(None, CheckpointSettings()) == 11 * MINUTE_MS
    assert wave_timeout_ms(None, hourly) == STOCK_BROKER_MAX_MS
