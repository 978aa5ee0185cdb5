"""A pipeline's graph as SVG, without another program.

Theory of operation. Records flow from top to bottom. A step is one row below the lowest of its
inputs. An arrow that crosses rows gets an invisible point in each of them, so it passes between the
boxes. A few sweeps put each box near the middle of its neighbours, and so most arrows do not cross.
Then the boxes of each row are moved apart until none overlaps.

The same drawing gives the same text on every machine.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Final

from tidegate.cli.inspect.graph_text import Arrow, Box, Drawing, describe_box

CHARACTER: Final = 7.4
"""The width of a character in pixels, for a sans-serif font of 13 pixels; most are narrower."""
TEXT_MAX: Final = 44
"""The most characters of a line. A longer text ends with an ellipsis, and its tooltip is whole."""
BOX_HEIGHT: Final = 46.0
ROW_GAP: Final = 54.0
GAP: Final = 28.0
MARGIN: Final = 20.0
POINT_WIDTH: Final = 12.0
"""The width that an arrow takes in a row that it crosses."""
SWEEPS: Final = 8

_FILL: Final = {"source": "#e3f2e6", "sink": "#fdebd8"}
_LINE: Final = {"source": "#3c8d4f", "sink": "#c7741d"}


@dataclass(slots=True)
class _Item:
    """A box, or the point where an arrow crosses a row."""

    box: Box | None
    row: int
    width: float
    x: float = 0.0
    """The middle of the item."""
    above: list[_Item] = field(default_factory=list)
    below: list[_Item] = field(default_factory=list)

    @property
    def top(self) -> float:
        return MARGIN + self.row * (BOX_HEIGHT + ROW_GAP)


def svg_text(picture: Drawing) -> str:
    """Return the picture as the text of an SVG file."""
    items = _items(picture)
    paths = _paths(picture, items)
    rows: dict[int, list[_Item]] = defaultdict(list)
    for item in [*items, *(point for path in paths for point in path[1:-1])]:
        rows[item.row].append(item)
    _place(rows)
    everything = [item for row in rows.values() for item in row]
    left = min(item.x - item.width / 2 for item in everything) - MARGIN
    for item in everything:
        item.x -= left
    width = max(item.x + item.width / 2 for item in everything) + MARGIN
    height = max(item.top for item in everything) + BOX_HEIGHT + MARGIN
    body = [_arrow(arrow, path) for arrow, path in zip(picture.arrows, paths, strict=True)]
    body += [_box(item, item.box) for item in items if item.box is not None]
    return "\n".join([*_head(picture.name, width, height), *body, "</svg>"])


def _items(picture: Drawing) -> list[_Item]:
    """Return an item per box, each one row below the lowest of its inputs."""
    rows = [0] * len(picture.boxes)
    for number in range(len(picture.boxes)):  # in topological order
        above = [rows[arrow.source] for arrow in picture.arrows if arrow.target == number]
        rows[number] = 1 + max(above, default=-1)
    return [
        _Item(box, row, max(len(_cut(box.id)), len(_cut(describe_box(box)))) * CHARACTER + 24)
        for box, row in zip(picture.boxes, rows, strict=True)
    ]


def _paths(picture: Drawing, items: list[_Item]) -> list[list[_Item]]:
    """Return the items of each arrow from its source to its target, with a point in each row
    between them.
    """
    paths = []
    for arrow in picture.arrows:
        source, target = items[arrow.source], items[arrow.target]
        points = [_Item(None, row, POINT_WIDTH) for row in range(source.row + 1, target.row)]
        path = [source, *points, target]
        for upper, lower in pairwise(path):
            upper.below.append(lower)
            lower.above.append(upper)
        paths.append(path)
    return paths


def _place(rows: dict[int, list[_Item]]) -> None:
    for row in rows.values():
        _spread(row)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for number in sorted(rows, reverse=not down):
            row = rows[number]
            for item in row:
                near = item.above if down else item.below
                if near:
                    item.x = sum(other.x for other in near) / len(near)
            row.sort(key=lambda item: item.x)
            _spread(row)


def _spread(row: list[_Item]) -> None:
    """Move the items of a row apart until none overlaps, and keep the middle of the row."""
    wished = sum(item.x for item in row) / len(row)
    for before, item in pairwise(row):
        item.x = max(item.x, before.x + (before.width + item.width) / 2 + GAP)
    moved = sum(item.x for item in row) / len(row) - wished
    for item in row:
        item.x -= moved


def _head(name: str, width: float, height: float) -> list[str]:
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    end = '<path d="M0,0 L8,4 L0,8 z" fill="#555"/>'
    marker = 'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"'
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        f"<title>{escape(name)}</title>",
        f'<defs><marker id="end" {marker}>{end}</marker></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]


def _arrow(arrow: Arrow, path: list[_Item]) -> str:
    steps = [f"M{path[0].x:.1f},{path[0].top + BOX_HEIGHT:.1f}"]
    for upper, lower in pairwise(path):
        begin, end = upper.top + BOX_HEIGHT, lower.top
        middle = (begin + end) / 2
        steps.append(
            f"C{upper.x:.1f},{middle:.1f} {lower.x:.1f},{middle:.1f} {lower.x:.1f},{end:.1f}"
        )
        if lower.box is None:  # a straight line through the row
            steps.append(f"L{lower.x:.1f},{end + BOX_HEIGHT:.1f}")
    dashes = ' stroke-dasharray="5 4"' if arrow.dead_letters else ""
    line = (
        f'<path d="{" ".join(steps)}" fill="none" stroke="#555" stroke-width="1.3"{dashes} '
        'marker-end="url(#end)"/>'
    )
    if not arrow.label:
        return line
    # The label stands near the target, where the arrows of one source have parted.
    before, target = path[-2], path[-1]
    x = before.x + 0.7 * (target.x - before.x)
    return (
        f"{line}\n"
        f'<text x="{x:.1f}" y="{target.top - 0.3 * ROW_GAP:.1f}" font-size="11" fill="#333" '
        'stroke="#fff" stroke-width="4" paint-order="stroke" text-anchor="middle">'
        f"{escape(_cut(arrow.label))}</text>"
    )


def _box(item: _Item, box: Box) -> str:
    fill, line = _FILL.get(box.kind, "#e8eefb"), _LINE.get(box.kind, "#4a6db5")
    radius = 20 if box.kind in {"source", "sink"} else 4
    tip = f"{box.id}: {describe_box(box)} ({box.location})"
    return (
        f"<g><title>{escape(tip)}</title>"
        f'<rect x="{item.x - item.width / 2:.1f}" y="{item.top:.1f}" width="{item.width:.1f}" '
        f'height="{BOX_HEIGHT:.0f}" rx="{radius}" fill="{fill}" stroke="{line}"/>'
        f'<text x="{item.x:.1f}" y="{item.top + 19:.1f}" text-anchor="middle" '
        f'font-weight="bold" fill="#111">{escape(_cut(box.id))}</text>'
        f'<text x="{item.x:.1f}" y="{item.top + 36:.1f}" text-anchor="middle" font-size="12" '
        f'fill="#333">{escape(_cut(describe_box(box)))}</text></g>'
    )


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
