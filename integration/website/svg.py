"""A small writer of SVG: boxes, arrows and words on a panel.

A panel has a background of its own, so a drawing is readable on any page. Its colours follow the
dark mode of the reader's system. The same calls give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

Point = tuple[float, float]

STYLE = """
text { font: 14px system-ui, "DejaVu Sans", sans-serif; fill: #1b2a33; }
.title { font-weight: 600; } .small { font-size: 12px; }
.mono { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; }
.mid { text-anchor: middle; } .faint { fill: #4d626e; }
.halo { paint-order: stroke; stroke: #ffffff; stroke-width: 5px; }
.panel { fill: #ffffff; stroke: #c9d5da; }
.process { fill: #e4f2ef; stroke: #00796b; } .kafka { fill: #fff1dc; stroke: #b26a00; }
.storage { fill: #e7ecfb; stroke: #3f51b5; } .step { fill: #f8fafb; stroke: #78909c; }
.a { fill: #b9e0d8; stroke: #00796b; } .b { fill: #ffdca8; stroke: #b26a00; }
.c { fill: #cbd4f7; stroke: #3f51b5; }
.line { fill: none; stroke: #37474f; stroke-width: 1.6; } .dashed { stroke-dasharray: 5 4; }
.head { fill: #37474f; } .mark { fill: #c62828; } .markline { stroke: #c62828; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eef1; } .faint { fill: #a9bcc5; }
  .halo { stroke: #1c2429; }
  .panel { fill: #1c2429; stroke: #44535b; }
  .process { fill: #17403a; stroke: #4db6ac; } .kafka { fill: #4a3410; stroke: #ffb74d; }
  .storage { fill: #263058; stroke: #9fa8da; } .step { fill: #2b363c; stroke: #90a4ae; }
  .a { fill: #1d564d; stroke: #4db6ac; } .b { fill: #614417; stroke: #ffb74d; }
  .c { fill: #36427a; stroke: #9fa8da; }
  .line { stroke: #cfd8dc; } .head { fill: #cfd8dc; } .mark { fill: #ff8a80; }
  .markline { stroke: #ff8a80; }
}
""".strip()


@dataclass(slots=True)
class Drawing:
    """A drawing of a fixed size. `title` is what a screen reader says."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draw a box with round corners."""
        self.parts.append(
            f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
            ' rx="8"/>'
        )

    def words(self, x: float, y: float, text: str, style: str = "") -> None:
        """Write one line that begins at this place, or has its middle there (`mid`)."""
        shown = f' class="{style}"' if style else ""
        self.parts.append(f'<text{shown} x="{x:g}" y="{y:g}">{escape(text)}</text>')

    def titled_box(self, at: Point, size: Point, kind: str, title: str, *lines: str) -> None:
        """Draw a box with a title and lines below it, in its middle."""
        (x, y), (width, height) = at, size
        self.box(x, y, width, height, kind)
        top = y + height / 2 - 9 * len(lines) + 5
        self.words(x + width / 2, top, title, "title mid")
        for number, line in enumerate(lines, 1):
            self.words(x + width / 2, top + 18 * number, line, "small mid")

    def arrow(
        self, *points: Point, style: str = "", label: str = "", label_at: Point = (0, 0)
    ) -> None:
        """Draw a line through these points, with a head at its end."""
        (x1, y1), (x2, y2) = points[-2:]
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        base = x2 - 9 * ux, y2 - 9 * uy
        path = " ".join(f"{x:g},{y:g}" for x, y in [*points[:-1], base])
        self.parts.append(f'<polyline class="line {style}" points="{path}"/>')
        corners = [(x2, y2)] + [
            (base[0] + side * 5 * uy, base[1] - side * 5 * ux) for side in (1, -1)
        ]
        shape = " ".join(f"{x:.4g},{y:.4g}" for x, y in corners)
        head = "mark" if "markline" in style else "head"
        self.parts.append(f'<polygon class="{head}" points="{shape}"/>')
        if label:
            self.words(*label_at, label, "small mid")

    def text(self) -> str:
        """Return the drawing as SVG."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
        panel = (
            f'<rect class="panel" x="1" y="1" width="{self.width - 2}" height="{self.height - 2}"'
            ' rx="10"/>'
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            panel,
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"
