"""Runs the Python blocks of README.md, and follows every link of every page.

A block that a reader copies must work, and a link must lead to a file, and to a heading of it.
"""

from __future__ import annotations

import functools
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])


def python_blocks(page: Path) -> list[str]:
    return re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in headings)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in plain}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            broken.append(target)
    return broken


def test_the_pipeline_of_the_readme_passes_the_test_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, test = python_blocks(ROOT / "README.md")
    (tmp_path / "totals_of_readme.py").write_text(pipeline, encoding="utf-8")
    imported = "from totals_of_readme import *\n"
    (tmp_path / "readme_block.py").write_text(imported + test + "ran = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module("readme_block").ran


@pytest.mark.parametrize("name", ["event-time", "scripts", "testing", "windows"])
def test_the_examples_of_a_guide_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"guide_{name.replace('-', '_')}"
    blocks = python_blocks(ROOT / "docs" / f"{name}.md")
    (tmp_path / f"{module}.py").write_text("\n\n".join(blocks) + "ran = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module(module).ran


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](nowhere.md) [b](README.md#no-such-heading) [c](README.md#guarantees)"
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md", "README.md#no-such-heading"]
