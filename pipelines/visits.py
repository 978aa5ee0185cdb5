"""The visits of users in a stream of clicks: a visit ends when no click came for half an hour of
event time.
"""

from __future__ import annotations

import msgspec

from tidegate import (
    BoundedOutOfOrderness,
    Count,
    First,
    Json,
    KafkaSink,
    KafkaSource,
    Pipeline,
    Session,
)


class Click(msgspec.Struct, frozen=True):
    user: str
    page: str
    at_ms: int


class Visit(msgspec.Struct, frozen=True):
    user: str
    start_ms: int
    end_ms: int
    """Half an hour after the last click."""
    clicks: int
    landing: str
    """The page of the first click."""


class Visits(Pipeline, name="visits"):
    """One result for each visit."""

    clicks = KafkaSource(
        "clicks",
        value=Json(Click),
        event_time=lambda click: click.at_ms,
        watermarks=BoundedOutOfOrderness("5 s", idle_after="1 min"),
    )
    visits = KafkaSink("visits", value=Json(Visit), record_key=lambda visit: visit.user)

    def define(self) -> None:
        by_user = self.clicks.key_by(lambda click: click.user)
        by_user.window(Session("30 min")).aggregate(
            Count(),
            First(lambda click: click.page),
            uid="sessions",
            into=lambda w, clicks, landing: Visit(w.key, w.start_ms, w.end_ms, clicks, landing),
        ).to(self.visits)
