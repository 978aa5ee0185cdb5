"""What the latency of windows rests on: each result seen once, and every record counted."""

from __future__ import annotations

import msgspec
import pytest

from integration.bench.window_feed import FIRST_MS, WINDOW_MS, Fed, VisitCount
from integration.bench.window_latency import SeenResults

SECOND = FIRST_MS + WINDOW_MS
FED = Fed(records=7, closed_ns={FIRST_MS: 1_000_000_000, SECOND: 2_000_000_000})


def seen(*results: tuple[str, int, int]) -> SeenResults:
    found = SeenResults()
    for user, start_ms, count in results:
        found.note(msgspec.json.encode(VisitCount(user, start_ms, count)), 2.25)
    return found


def test_latency_counts_from_the_end_of_the_window_and_leaves_out_earlier_windows() -> None:
    found = seen(("a", FIRST_MS, 2), ("b", SECOND, 4), ("a", SECOND, 1))
    assert found.took_ms(FED, 1.5) == [(SECOND, 250.0), (SECOND, 250.0)]
    assert found.took_ms(FED, 0.5)[0] == (FIRST_MS, 1250.0)


def test_result_that_is_seen_twice_is_refused() -> None:
    with pytest.raises(RuntimeError, match="was seen twice"):
        seen(("a", FIRST_MS, 2), ("a", FIRST_MS, 2))


@pytest.mark.parametrize("count", [4, 6])
def test_results_that_do_not_count_each_record_once_are_refused(count: int) -> None:
    with pytest.raises(
        RuntimeError, match=f"count {2 + count} records, and the feed has written 7"
    ):
        seen(("a", FIRST_MS, 2), ("b", SECOND, count)).took_ms(FED, 0.0)


def test_feed_tells_the_end_of_each_window_as_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(FED), type=Fed) == FED
