"""Formats the results as tables for the terminal and for `docs/evidence/benchmarks.md`."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

import confluent_kafka
import psutil

PAGE: Final = Path(__file__).parents[2] / "docs" / "evidence" / "benchmarks.md"
PACKAGES: Final = ("confluent-kafka", "msgspec", "rocksdict")

HEAD: Final = """# Benchmarks

`make bench` and `make bench-spark` write this page. Do not edit it.
[This page](../../integration/bench/README.md) explains how each figure is measured.
CPU seconds are those of the whole process tree per million records, without the start-up. Those of
the broker are in columns of their own.
The text below each table says how the outputs were checked.
The input has records of 143 bytes, 100,000 keys and 4 partitions, on an embedded broker of the same
machine.
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text with the titles of their columns, and a note."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    whole: bool = True
    """Whether the table may replace a section of the page. It may not if rows are missing."""

    def markdown(self) -> str:
        """Return the table as a section of the page."""
        lines = [f"## {self.title}", ""]
        lines.append(f"| {' | '.join(self.columns)} |")
        lines.append(f"| {' | '.join('---' for _ in self.columns)} |")
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def plain(self) -> str:
        """Return the table for a terminal."""
        rows = [list(self.columns), *map(list, self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.columns))]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
        ]
        return "\n".join(["", self.title, *lines, *([self.note] if self.note else [])])


def write(tables: Sequence[Table], broker: str, records: int | None) -> None:
    """Put the whole tables into the page.

    Sections with other titles stay as they are, even if they come from another machine. `records`
    is None if the figures do not depend on the number of records.
    """
    sections = _sections(PAGE.read_text()) if PAGE.exists() else {}
    counted = "" if records is None else f"{records:,} records; "
    where = f"{counted}{surroundings(broker)}"
    for table in tables:
        if table.whole:
            sections[table.title] = replace(table, note=f"{table.note} {where}".strip()).markdown()
    PAGE.write_text("\n".join([HEAD, *sections.values()]))


def surroundings(broker: str) -> str:
    """Return the day, the machine and the versions, without names or paths.

    Each section states them, because sections are renewed one by one.
    """
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{time.strftime('%Y-%m-%d')}; {os.cpu_count()} cores of {_processor()}, "
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB, {platform.system()}, load average "
        f"{os.getloadavg()[1]:.1f}; Kafka {broker}, Python {platform.python_version()}, "
        f"{packages}, librdkafka {confluent_kafka.libversion()[0]}."
    )


def _sections(text: str) -> dict[str, str]:
    """Return the sections of a page by title, unchanged."""
    return {part.split("\n", 1)[0]: f"## {part}" for part in text.split("\n## ")[1:]}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()
