"""A slow cell of the kill matrix stands on the page with its reason."""

from __future__ import annotations

from pathlib import Path

import msgspec

from integration.faults.kill_matrix.reasons import SLOW_S, UNKNOWN, reason
from integration.faults.kill_matrix.report import RESULTS, page
from integration.faults.kill_matrix.scenarios import EXACT, Result

DOCS = Path(__file__).parents[2] / "docs" / "evidence"
HALF_OPEN = "network/4.3.0/keyed/jobmaster-to-kafka/half-open"


def result(cell: str, *recovery_s: float) -> Result:
    return Result(
        cell=cell,
        name=cell,
        version="4.3.0",
        pipeline="keyed",
        signal="cut",
        seed=1,
        kills=1,
        recovery_s=recovery_s,
        verdict=EXACT,
        date="2026-01-01",
    )


def test_page_lists_slow_cells_with_their_reasons_slowest_first() -> None:
    found = [result("network/a", SLOW_S), result("network/b", 3.0, 30.0), result(HALF_OPEN, 40.0)]
    text = page({each.cell: each for each in found}, len(found))
    part = text.partition("and why")[2].partition("\n## ")[0]
    assert "`network/a`" not in part
    assert f"| `network/b` | median 16.5 s, worst 30.0 s | 2026-01-01 | {UNKNOWN} |" in part
    assert part.index(HALF_OPEN) < part.index("`network/b`")
    assert reason(HALF_OPEN) in part
    assert reason(HALF_OPEN) != UNKNOWN


def test_page_has_no_section_of_slow_cells_if_there_are_none() -> None:
    assert "and why" not in page({"network/a": result("network/a", 1.0)}, 1)


def test_every_slow_cell_of_the_recorded_results_has_a_reason() -> None:
    results = msgspec.json.decode((DOCS / RESULTS).read_bytes(), type=list[Result])
    slow = [each.cell for each in results if max(each.recovery_s, default=0.0) > SLOW_S]
    assert [cell for cell in slow if reason(cell) == UNKNOWN] == []
