"""The forms of event time that a checkpoint of `event_time.EventTimes` stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from integration.agreement.outcome import is_chunk, stored_pairs, windows_of_chunk
from tests.golden.event_time import STORED_WATERMARK_MS, EventTimes
from tidegate import build
from tidegate.checkpoint.manifest import Manifest
from tidegate.graph.operator_kinds import operator_kind
from tidegate.ids import Uid
from tidegate.stream_elements import MAX_MS, MIN_MS

TOMBSTONES: Final = "tombstones in chunks of sessions"
FORMS: Final = frozenset(
    {
        *(f"chunks of {uid}" for uid in ("minutes", "days", "sessions", "own-minutes")),
        *(f"rows of {uid}" for uid in ("sliding", "names", "alarm")),
        TOMBSTONES,
        "a chunk of windows whose firing is over",
        "the watermark of each partition",
        "the watermark of each step with state",
        "the watermark of each subtask of a step with its own time",
    }
)


def stored_forms(manifest: Manifest, storage: Path) -> frozenset[str]:
    """Return the forms of `FORMS` that a checkpoint has."""
    return frozenset([*_of_state(manifest, storage), *_of_watermarks(manifest)])


def watermarks_of(manifest: Manifest) -> dict[str, int]:
    """Return the watermark of each partition, and the least of all subtasks of each step."""
    found: dict[str, int] = {}
    for part in manifest.subtasks:
        named = [(f"{split.topic}-{split.partition}", split.watermark_ms) for split in part.splits]
        named += [(each.uid, each.watermark_ms) for each in part.keyed]
        named += [(each.uid, each.watermark_ms) for each in part.watermarks if not each.idle]
        for name, watermark_ms in named:
            found[name] = min(
                found.get(name, MAX_MS), MIN_MS if watermark_ms is None else watermark_ms
            )
    return found


def _of_state(manifest: Manifest, storage: Path) -> Iterator[str]:
    for node in build(EventTimes):
        if not operator_kind(node.kind).keyed:
            continue
        pairs = stored_pairs(manifest, storage, Uid(node.id))
        for store_key, data in pairs:
            yield f"{'chunks' if is_chunk(store_key) else 'rows'} of {node.id}"
            windows = windows_of_chunk(data) if is_chunk(store_key) else []
            if any(end_ms < start_ms for _, start_ms, end_ms, *_ in windows):
                yield TOMBSTONES
            if any(
                0 <= start_ms < end_ms <= STORED_WATERMARK_MS for _, start_ms, end_ms, *_ in windows
            ):
                yield "a chunk of windows whose firing is over"


def _of_watermarks(manifest: Manifest) -> Iterator[str]:
    if {split.watermark_ms for split in manifest.splits} == {STORED_WATERMARK_MS}:
        yield "the watermark of each partition"
    keyed = {each.watermark_ms for part in manifest.subtasks for each in part.keyed}
    if keyed == {STORED_WATERMARK_MS}:
        yield "the watermark of each step with state"
    own = {each.watermark_ms for part in manifest.subtasks for each in part.watermarks}
    if own == {STORED_WATERMARK_MS}:
        yield "the watermark of each subtask of a step with its own time"
