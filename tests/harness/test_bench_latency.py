"""What the latencies of the benchmark rest on: the feed, each record seen once, the shares."""

from __future__ import annotations

import msgspec
import pytest

from integration.bench.data import USERS, Click
from integration.bench.latency import BUCKETS_MS, Seen, histogram
from integration.bench.steady_producer import SIZE, make_bytes, make_clicks, number_of, produced_s


def test_feed_record_carries_its_time_and_number() -> None:
    value = make_bytes()(12_345, 1_700_000_000_250_000_000)
    assert len(value) == SIZE
    assert number_of(value) == 12_345
    assert produced_s(value) == pytest.approx(1_700_000_000.25, abs=1e-6)


def test_feed_click_carries_its_time_and_users_take_turns() -> None:
    make = make_clicks()
    click = msgspec.json.decode(make(USERS + 3, 1_700_000_000_250_000_000), type=Click)
    assert click.user == "u000003"
    assert click.amount == pytest.approx(1_700_000_000.25, abs=1e-6)


def seen(*numbers: int) -> Seen:
    found = Seen()
    make = make_bytes()
    for number in numbers:
        found.note(make(number, 5_000_000_000), 5.25, measured=number % 2 == 0)
    return found


def test_records_seen_once_each_pass_in_any_order_and_some_are_measured() -> None:
    found = seen(2, 0, 3, 1)
    found.check(4)
    assert found.took_ms == [250.0, 250.0]


def test_a_record_seen_twice_is_refused() -> None:
    with pytest.raises(RuntimeError, match="Record 1 of the feed was seen twice"):
        seen(0, 1, 2, 1)


@pytest.mark.parametrize("numbers", [(1, 2, 3), (0, 1, 3), (0, 1, 2)])
def test_a_record_never_seen_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError, match="Of 4 records of the feed, 1 were never seen, and 0"):
        seen(*numbers).check(4)


def test_a_record_that_was_not_sent_is_refused() -> None:
    with pytest.raises(RuntimeError, match="0 were never seen, and 1 were seen that it did not"):
        seen(0, 1, 2).check(2)


def test_latency_bucket_includes_its_bound_and_the_last_bucket_holds_the_rest() -> None:
    shares = histogram([1.0, 5.0, 5.1, 1000.0, 1000.1])
    assert shares == [0.4, 0.2, *([0.0] * (len(BUCKETS_MS) - 3)), 0.2, 0.2]
