"""The reference of all settings, from the comments of `default.toml`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files


def settings_text() -> str:
    """Return one section of Markdown for each section of `default.toml`."""
    text = files("tidegate").joinpath("default.toml").read_text(encoding="utf-8")
    return "\n".join(_sections(text))


def _sections(text: str) -> Iterator[str]:
    section, comment, in_table = "", list[str](), False
    for line in text.splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").removeprefix(" "))
        elif found := re.fullmatch(r"\[(.+)\]", line):
            section, in_table = found[1], False
            yield f"\n## {section}\n"
            yield from _prose(comment)
            comment = []
        elif found := re.fullmatch(r"(\w+) = (.+)", line):
            if not in_table:
                yield "\n| setting | default | meaning |\n| --- | --- | --- |"
                in_table = True
            words = " ".join(comment).replace("|", r"\|")
            yield f"| `{section}.{found[1]}` | `{found[2]}` | {words} |"
            comment = []
        elif not section:  # the head of the file, which the page says in its own words
            comment = []


def _prose(comment: list[str]) -> Iterator[str]:
    """Yield a comment as paragraphs, with its indented lines as a block of TOML."""
    code = list[str]()
    for line in [*comment, ""]:
        if line.startswith("  "):
            code.append(line.removeprefix("  "))
            continue
        if code:
            yield "\n```toml\n" + "\n".join(code) + "\n```\n"
            code = []
        yield line
