"""A model of windows, written from their meaning: each window keeps the list of its records.

It knows no panes, no timers and no rows. A session is found again from all records after each one.
Every result is computed from the list when a window fires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.dataplane.windows.subtasks import Click, Result
from tidegate.stream_elements import MIN_MS

Span = tuple[int, int]


@dataclass
class OpenWindow:
    key: str
    span: Span
    clicks: list[Click] = field(default_factory=list)
    new: list[Click] = field(default_factory=list)
    """The clicks that no result has contained."""
    number: int = 0
    ended: bool = False


@dataclass
class Model:
    """Windows of event time with `AfterWatermark`, early firings by count, and a late firing for
    each record.
    """

    results_of: Callable[[list[Click]], tuple[Any, ...]]
    spans_of: Callable[[int], list[Span]] | None
    """The windows of a time. None: sessions."""
    gap_ms: int = 0
    lateness_ms: int = 0
    early: int | None = None
    accumulate: bool = True
    always: bool = False
    """Whether each window fires at its end, also if it has no new clicks."""
    watermark_ms: int = MIN_MS
    windows: list[OpenWindow] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    late: list[Click] = field(default_factory=list)

    def push(self, click: Click) -> None:
        windows = self._session(click) if self.spans_of is None else self._windows(click)
        if not windows:
            self.late.append(click)
        for window in windows:
            window.clicks.append(click)
            window.new.append(click)
            if window.span[1] - 1 <= self.watermark_ms:
                window.ended = True
                self._fire(window, "late")
            elif self.early is not None and len(window.new) >= self.early:
                self._fire(window, "early")

    def advance(self, watermark_ms: int) -> None:
        self.watermark_ms = watermark_ms
        for window in sorted(self.windows, key=lambda window: window.span[1]):
            if window.span[1] - 1 <= watermark_ms and not window.ended:
                if window.new or self.always:
                    self._fire(window, "on_time")
                window.ended = True
        self.windows = [window for window in self.windows if not self._is_gone(window.span)]

    def _is_gone(self, span: Span) -> bool:
        return span[1] - 1 + self.lateness_ms <= self.watermark_ms

    def _windows(self, click: Click) -> list[OpenWindow]:
        assert self.spans_of is not None
        spans = self.spans_of(click.at_ms)
        return [self._window(click.key, span) for span in spans if not self._is_gone(span)]

    def _window(self, key: str, span: Span) -> OpenWindow:
        for window in self.windows:
            if (window.key, window.span) == (key, span):
                return window
        self.windows.append(OpenWindow(key, span))
        return self.windows[-1]

    def _session(self, click: Click) -> list[OpenWindow]:
        start, end = click.at_ms, click.at_ms + self.gap_ms
        touched = [
            window
            for window in self.windows
            if window.key == click.key and window.span[0] <= end and start <= window.span[1]
        ]
        if not touched and self._is_gone((start, end)):
            return []
        span = (
            min([start, *(window.span[0] for window in touched)]),
            max([end, *(window.span[1] for window in touched)]),
        )
        merged = OpenWindow(click.key, span)
        for window in sorted(touched, key=lambda window: window.span):
            merged.clicks += window.clicks
            merged.new += window.new
            merged.number += window.number
        # It fires again at its end, if that is still to come.
        merged.ended = span[1] - 1 <= self.watermark_ms
        self.windows = [window for window in self.windows if window not in touched]
        self.windows.append(merged)
        return [merged]

    def _fire(self, window: OpenWindow, firing: str) -> None:
        values = self.results_of(window.clicks if self.accumulate else window.new)
        self.results.append(Result(window.key, *window.span, firing, window.number, values))
        window.number += 1
        window.new = []
