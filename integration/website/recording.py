"""Records a run of `make demo`, and draws it as a terminal.

    python -m integration.website.recording

The lines of the run, each with its time in seconds, go into docs/assets/demo.json. The drawing,
docs/assets/demo.svg, is made from this file alone. `--draw` only draws it again. The drawing leaves
out the lines of progress between the kills, and shows the times ten times as fast. It begins with
the end of the run, so that it is never an empty terminal.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import textwrap
import time
from html import escape
from pathlib import Path

ASSETS = Path(__file__).parents[2] / "docs" / "assets"
ROOT = Path(__file__).parents[2]
COLUMNS, LINE_PX, CHARACTER_PX, MARGIN_PX = 100, 20, 8.1, 18
SPEED = 10.0
STEP_S = 0.12
"""The least time between two lines, in seconds: lines that come together are seen one by one."""

PROGRESS = re.compile(r"\d+:\d\d  [a-z ]+, \d+ restarts?, |\.venv/bin/python")
STYLE = """
text { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; fill: #d5dee3; white-space: pre; }
.prompt { fill: #80cbc4; } .kill { fill: #ff8a80; } .verdict { fill: #a5d6a7; font-weight: 700; }
.screen { fill: #1b2328; stroke: #55666f; } .dot { fill: #55666f; }
@media (prefers-reduced-motion: no-preference) {
  .line { animation: unseen step-end; animation-delay: 3s; }
  @keyframes unseen { from { opacity: 0; } }
}
""".strip()

Line = tuple[float, str]


def main(arguments: list[str] | None = None) -> int:
    """Record unless told not to, then draw. The exit code is that of the demo."""
    parser = argparse.ArgumentParser(
        prog="python -m integration.website.recording", description=__doc__
    )
    parser.add_argument("--draw", action="store_true", help="Only draw the last recording again.")
    code = 0
    if not parser.parse_args(arguments).draw:
        code, lines = record()
        if code == 0:
            text = ",\n".join(json.dumps(line) for line in lines)
            (ASSETS / "demo.json").write_text(f"[\n{text}\n]\n", encoding="utf-8")
    (ASSETS / "demo.svg").write_text(draw(recorded()), encoding="utf-8")
    return code


def record() -> tuple[int, list[Line]]:
    """Run the demo, and return its exit code and its lines with their times."""
    begun, lines = time.monotonic(), list[Line]()
    with subprocess.Popen(
        ["make", "--no-print-directory", "demo"],  # the make of this machine
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        for line in demo.stdout or ():
            print(line, end="", flush=True)
            lines.append((round(time.monotonic() - begun, 1), line.rstrip()))
    return demo.returncode, lines


def recorded() -> list[Line]:
    """Return the lines of the last recording."""
    found = json.loads((ASSETS / "demo.json").read_text(encoding="utf-8"))
    return [(float(at_s), str(line)) for at_s, line in found]


def draw(lines: list[Line]) -> str:
    """Draw a recording as an animated terminal. The first picture has all lines, and stays for
    three seconds. Then they come one by one. A reader without animation sees all lines.
    """
    shown: list[tuple[float, str, str]] = [(0.0, "prompt", "$ make demo")]
    is_verdict = False
    for at_s, line in lines:
        if PROGRESS.match(line):
            continue
        is_verdict |= line.startswith("verdict")
        style = "verdict" if is_verdict else "kill" if " killed (" in line else ""
        for part in _wrapped(line):
            shown.append((max(at_s / SPEED, shown[-1][0] + STEP_S), style, part))
    width = round(2 * MARGIN_PX + COLUMNS * CHARACTER_PX)
    height = 2 * MARGIN_PX + 16 + LINE_PX * len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}"',
        f'viewBox="0 0 {width} {height}">',
        "<title>A run of make demo: four kills, and the verdict of the checker</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="screen" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="10"/>',
        *(f'<circle class="dot" cx="{18 + 16 * number}" cy="16" r="5"/>' for number in range(3)),
    ]
    for number, (at_s, style, line) in enumerate(shown):
        y = MARGIN_PX + 16 + LINE_PX * (number + 0.7)
        parts.append(
            f'<text class="{f"line {style}".strip()}" style="animation-duration:{at_s:.2f}s"'
            f' x="{MARGIN_PX}" y="{y:g}" xml:space="preserve">{escape(line)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _wrapped(line: str) -> list[str]:
    """Break a long line. Spaces inside of a line stay: they align the table of the demo."""
    if len(line) <= COLUMNS:
        return [line]
    return textwrap.wrap(line, COLUMNS, subsequent_indent=" " * 13)


if __name__ == "__main__":
    sys.exit(main())
