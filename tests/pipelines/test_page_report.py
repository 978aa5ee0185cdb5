"""Page report: one row for each page and minute, from the times in the records."""

from __future__ import annotations

import random

from pipelines.page_report import PageMinute, PageReport, PageView
from tidegate.testing import PipelineTest, Setup

MINUTE = 60_000
LATER = PageView("later", 0, 100 * MINUTE)
"""A view that is later than every minute of the others."""


def report(*views: PageView, setup: Setup | None = None) -> list[PageMinute]:
    with PipelineTest(PageReport, setup or Setup()) as test:
        test.source(PageReport.views).push(*views, LATER)
        rows = test.sink(PageReport.report).read()
        return sorted(rows, key=lambda row: (row.page, row.start_ms))


def test_row_has_the_views_and_load_times_of_its_minute() -> None:
    views = (
        PageView("/", 100, 1_000),
        PageView("/", 300, MINUTE - 1),
        PageView("/", 50, MINUTE),
        PageView("/help", 10, 0),
    )
    assert report(*views) == [
        PageMinute("/", 0, 2, 200.0, 300),
        PageMinute("/", MINUTE, 1, 50.0, 50),
        PageMinute("/help", 0, 1, 10.0, 10),
    ]


def test_rows_do_not_depend_on_the_order_of_near_views_or_on_the_parallelism() -> None:
    draw = random.Random(1)
    views = [PageView(f"/{n % 3}", draw.randrange(1_000), n * 500) for n in range(400)]
    expected = report(*views)
    assert sum(row.views for row in expected) == 400
    near = sorted(views, key=lambda view: view.at_ms + draw.randrange(9_000))
    assert report(*near) == expected
    assert report(*views, setup=Setup(parallelism=3, batch=7, seed=2)) == expected
