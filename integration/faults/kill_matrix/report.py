"""Keeps the results as JSON, and renders the page from them, in one folder.

`docs/evidence/kill-matrix.json` holds the newest result of every cell, so that a run of some cells
keeps the other results. `docs/evidence/kill-matrix.md` is rendered from that file alone, whenever a
result is added. `SECTIONS` holds the renderers of sections. A section without a renderer is one
table with a row per cell.
"""

from __future__ import annotations

import fcntl
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from integration.faults.kill_matrix.reasons import SLOW_S, reason
from integration.faults.kill_matrix.scenarios import Result

RESULTS = "kill-matrix.json"
PAGE = "kill-matrix.md"

TITLE = "# The kill matrix"
INTRODUCTION = """
`make chaos` writes this page. Do not edit it. The page lists attacks on jobs with real Apache Kafka
brokers, and the verdict of an independent checker on the output after each attack. The checker
(`integration/demo/checker.py`) uses plain confluent-kafka and no code of tidegate.

*Exact* means four things. Each output is there once (as a multiset). The outputs of each key are in
order. All records that a `read_committed` reader saw during the run are unchanged at the end. No
transaction is left open.

*Recovery* is the time that such a reader measures, from the fault to the first committed output of
the next attempt.
"""

Results = dict[str, Result]
"""Results by cell."""


class Record:
    """The results of all runs so far, in a folder."""

    def __init__(self, folder: Path, order: Sequence[str]) -> None:
        """Read the results of a folder.

        `order` lists all existing cells. Results of other cells are dropped when a result is added.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._order = folder, order
        self.results = self._read()

    def add(self, *results: Result) -> None:
        """Add results, and write both files. Another run may do the same meanwhile."""
        with (self._folder / ".kill-matrix.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._read() | {result.cell: result for result in results}
            self.results = {cell: known[cell] for cell in self._order if cell in known}
            lines = [msgspec.json.encode(each).decode() for each in self.results.values()]
            _replace(self._folder / RESULTS, "[\n" + ",\n".join(lines) + "\n]\n")
            self.render()

    def _read(self) -> Results:
        path = self._folder / RESULTS
        known = msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []
        return {result.cell: result for result in known}

    def render(self) -> None:
        """Write the page from the results."""
        _replace(self._folder / PAGE, page(self.results, len(self._order)))


Renderer = Callable[[Sequence[Result]], str]
SECTIONS: dict[str, tuple[str, Renderer]] = {}
"""Title and renderer by section. Modules with scenarios add their entry at their import."""


def page(results: Results, due: int) -> str:
    """Return the whole page."""
    sections: dict[str, list[Result]] = {}
    for result in results.values():
        sections.setdefault(result.section, []).append(result)
    parts = [TITLE, INTRODUCTION.strip(), summary(list(results.values()), due)]
    slow = slow_ones(results.values())
    if slow:
        parts += [f"## Slower than {SLOW_S:g} s, and why", slower(slow)]
    for name, found in sections.items():
        title, renderer = SECTIONS.get(name, (name.capitalize(), rows))
        parts += [f"## {title}", renderer(found)]
    return "\n\n".join(parts) + "\n"


def summary(results: Sequence[Result], due: int) -> str:
    """Return the table of dates, machine, versions, counts and recovery times."""
    wrong = [result for result in results if not result.right]
    dates = sorted({result.date for result in results})
    versions = sorted({result.version for result in results})
    seeds = sorted({result.seed for result in results})
    facts = [
        ("run on", " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
        ("Apache Kafka", ", ".join(versions)),
        ("seeds", ", ".join(map(str, seeds))),
        ("cells", f"{len(results)} of {due} run, {len(results) - len(wrong)} exact"),
        ("kills and faults", str(sum(result.kills for result in results))),
        ("recovery", seconds(results)),
        (f"slower than {SLOW_S:g} s", f"{len(slow_ones(results))} cells"),
    ]
    return table(("what", "figure"), facts)


def slow_ones(results: Iterable[Result]) -> list[Result]:
    """Return the results that need a reason."""
    return [result for result in results if max(result.recovery_s, default=0.0) > SLOW_S]


def slower(results: Iterable[Result]) -> str:
    """Return the table of slow cells with their reasons, the slowest first."""
    columns = ("cell", "recovery", "run on", "why")
    ordered = sorted(results, key=lambda result: -max(result.recovery_s))
    return table(
        columns,
        [(f"`{each.cell}`", seconds([each]), each.date, reason(each.cell)) for each in ordered],
    )


def rows(results: Sequence[Result]) -> str:
    """Return a table with one row for each cell."""
    columns = ("what", "Kafka", "pipeline", "fault", "kills", "recovery", "verdict")
    return table(
        columns,
        [
            (
                result.name,
                result.version,
                result.pipeline,
                result.signal,
                str(result.kills),
                seconds([result]),
                verdict(result),
            )
            for result in results
        ],
    )


def verdict(result: Result) -> str:
    """Return the verdict with its note. A wrong verdict is printed in bold."""
    text = result.verdict if result.right else f"**WRONG**: {result.verdict}"
    return f"{text} ({result.note})" if result.note else text


def seconds(results: Iterable[Result]) -> str:
    """Return the median and the longest recovery."""
    times = [each for result in results for each in result.recovery_s]
    if not times:
        return ""
    median, worst = statistics.median(times), max(times)
    return f"{median:.1f} s" if len(times) == 1 else f"median {median:.1f} s, worst {worst:.1f} s"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(_cell(text) for text in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _replace(path: Path, text: str) -> None:
    """Replace the whole file in one step, because a run may be interrupted at any time."""
    new = path.with_suffix(path.suffix + ".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)
