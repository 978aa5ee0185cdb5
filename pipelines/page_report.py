"""Analytics: the views and the load times of each page in each minute of event time.

The run is bounded: it reads what the topic has now, and ends. The next run continues there.
`python pipelines/page_report.py`.
"""

from __future__ import annotations

import msgspec

from tidegate import (
    BoundedOutOfOrderness,
    Count,
    Json,
    KafkaSink,
    KafkaSource,
    Max,
    Mean,
    Pipeline,
    Tumbling,
)


class PageView(msgspec.Struct, frozen=True):
    page: str
    load_ms: int
    at_ms: int


class PageMinute(msgspec.Struct, frozen=True):
    page: str
    start_ms: int
    views: int
    mean_load_ms: float
    max_load_ms: int


class PageReport(Pipeline, name="page-report"):
    """One row for each page and minute."""

    views = KafkaSource(
        "page-views",
        value=Json(PageView),
        event_time=lambda view: view.at_ms,
        watermarks=BoundedOutOfOrderness("10 s", idle_after="1 min"),
    )
    report = KafkaSink("page-report", value=Json(PageMinute), record_key=lambda row: row.page)

    def define(self) -> None:
        by_page = self.views.key_by(lambda view: view.page)
        by_page.window(Tumbling("1 min")).aggregate(
            Count(),
            Mean(lambda view: view.load_ms),
            Max(lambda view: view.load_ms),
            uid="page-minutes",
            into=lambda w, views, mean, worst: PageMinute(w.key, w.start_ms, views, mean, worst),
        ).to(self.report)


if __name__ == "__main__":
    result = PageReport().run(bounded=True, drain=False)
    print(f"{result.records_in} views, {result.records_out} rows, {result.ended}")
