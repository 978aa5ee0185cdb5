"""Clicks without their repetitions: trackers send a click again when the network was slow.

A click's `event_id` says which are the same. Per user and page the last event ids are remembered, a
bounded number, so that state does not grow with time; a repetition comes soon after its original.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import BaseModel

from tidegate import (
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    Param,
    Pipeline,
    SideOutput,
)


class Click(BaseModel, frozen=True):
    event_id: str
    user: str
    page: str
    kind: Literal["view", "buy"]
    at_ms: int


class DropRepeats(KeyedProcess[tuple[str, str], Click, Click]):
    """Lets each event of a user and page through once, among the last `remembered` of them."""

    seen = ListState(str)
    repeats = SideOutput(Click)

    def __init__(self, *, remembered: int) -> None:
        self.remembered = remembered

    def process(self, click: Click, ctx: Context[tuple[str, str]]) -> Iterable[Click]:
        seen = list(self.seen)
        if click.event_id in seen:
            ctx.output(self.repeats, click)
            return
        self.seen.replace([*seen, click.event_id][-self.remembered :])
        yield click


class ClickDedup(Pipeline, name="click-dedup"):
    """Each click once; what was dropped goes to a topic of its own, to be counted."""

    remembered = Param(int, default=16, help="must be 1 or more", check=lambda number: number >= 1)

    clicks = KafkaSource(
        "clicks", value=Json(Click), on_bad_record="dead_letter", dead_letter_topic="clicks-bad"
    )
    unique = KafkaSink("clicks-unique", value=Json(Click), record_key=lambda click: click.user)
    repeated = KafkaSink("clicks-repeated", value=Json(Click), record_key=lambda click: click.user)

    def define(self) -> None:
        unique = self.clicks.key_by(lambda click: (click.user, click.page)).process(
            DropRepeats(remembered=self.remembered), uid="drop-repeats"
        )
        unique.to(self.unique)
        unique.side_output(DropRepeats.repeats).to(self.repeated)
