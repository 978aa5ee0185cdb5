"""Finds the code blocks of Markdown, and what a comment above a block says of it. Pure text.

A block is fenced and has a language. Its title, as in ```` ```python title="totals.py" ````, is the
file that it is saved as. A comment directly above the fence says how a test handles the block:

    <!-- not run: REASON -->         no test executes it; commands of tidegate are still parsed
    <!-- background -->              the commands run until the page ends, or until `stop`
    <!-- background, until: TEXT --> the same; the next block waits until the commands print TEXT
    <!-- stop -->                    first send Ctrl-C to the commands in the background
    <!-- exit code: N -->            the commands end with this exit code
    <!-- output -->                  the commands before this block have printed these lines
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^( *)```(\S*)(.*)$")
DIRECTIVE = re.compile(r"^ *<!-- (not run|background|stop|exit code|output)(?:[:,] (.*?))? -->$")
SHELL = {"sh", "console"}


@dataclass(frozen=True, slots=True)
class Block:
    """One code block: its place, its language, its file and its directives."""

    page: Path
    line: int
    language: str
    title: str
    code: str
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def is_run(self) -> bool:
        """Tell whether a test executes this block."""
        return "not run" not in self.directives

    @property
    def place(self) -> str:
        """The page and the line of the block, for messages."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path, text: str) -> list[Block]:
    """Return the code blocks of a page in order."""
    return list(_blocks(page, text.splitlines()))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    at, directives = 0, dict[str, str]()
    while at < len(lines):
        line = lines[at]
        if found := DIRECTIVE.match(line):
            directives[found[1]] = found[2] or ""
        elif found := FENCE.match(line):
            indent, language, rest = found.groups()
            end = lines.index(f"{indent}```", at + 1)
            code = "\n".join(each.removeprefix(indent) for each in lines[at + 1 : end])
            title = re.search(r'title="([^"]+)"', rest)
            yield Block(page, at + 1, language, title[1] if title else "", code + "\n", directives)
            at, directives = end, {}
        elif line.strip():
            directives = {}
        at += 1


def indented_blocks(text: str) -> list[str]:
    """Return the first lines of blocks that are indented and not fenced: they have no language."""
    plain = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [
        found[1].strip()
        for found in re.finditer(r"(?:\A|\n)[ \t]*\n((?: {4}|\t)[^\n]+)", plain)
        if not _is_list_text(plain[: found.start()], found[1])
    ]


def _is_list_text(before: str, line: str) -> bool:
    """Tell whether an indented line belongs to a list item above it."""
    indent = len(line) - len(line.lstrip())
    for above in reversed(before.splitlines()):
        if not above.strip():
            continue
        item = re.match(r"( *)(?:[-*]|\d+\.) ", above)
        if item:
            return indent < len(item[0]) + 4
        if not above.startswith(" "):
            return False
    return False
