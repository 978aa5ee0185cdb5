"""Runs the Python blocks of every page, parses every command, and follows every link.

A block that a reader copies must work, and a link must lead to a file, and to a heading of it.
`integration/documentation` types the commands of the pages on a real broker.
"""

from __future__ import annotations

import functools
import importlib
import re
import shlex
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from integration.website.blocks import SHELL, Block, blocks_of, indented_blocks
from integration.website.commands import all_commands
from tidegate.testing import PipelineTest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")])
WITH_BLOCKS = [*PAGES, ROOT / "integration" / "bench" / "README.md"]
LANGUAGES = {"python", "toml", "ini", "text", "mermaid"} | SHELL
NOT_RUN_MAX = 25
"""The number of blocks that no test runs. Lower it where a block begins to run."""


def blocks(page: Path) -> list[Block]:
    return blocks_of(page.relative_to(ROOT), page.read_text(encoding="utf-8"))


ALL_BLOCKS = [each for page in WITH_BLOCKS for each in blocks(page)]


def of(*languages: str) -> list[Block]:
    return [each for each in ALL_BLOCKS if each.language in languages]


def ids(found: list[Block]) -> list[str]:
    return [each.place for each in found]


def python_blocks(page: Path) -> list[str]:
    return [each.code for each in blocks(page) if each.language == "python" and each.is_run]


def without_code(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in headings)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in plain}


def broken_links(page: Path, text: str) -> list[str]:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and to.suffix == ".md" and anchor not in anchors(to)):
            broken.append(target)
    return broken


def commands_of(block: Block) -> list[list[str]]:
    """The words of each command of tidegate in a shell block."""
    code = block.code.replace("\\\n", " ")
    if block.language == "console":
        code = "\n".join(line[2:] for line in code.splitlines() if line.startswith("$ "))
    found = re.findall(r"(?:^|\$\(|[;&|] *)(tidegate [^|&;)<>\n]+)", code, re.MULTILINE)
    return [shlex.split(each, comments=True) for each in found]


def parse(words: list[str]) -> None:
    """Parse a command as the command line does, without running it."""
    known = dict(all_commands())
    name = next(
        name for length in range(len(words), 0, -1) if (name := " ".join(words[:length])) in known
    )
    known[name].make_context(name, words[name.count(" ") + 1 :])


def test_the_pipeline_of_the_readme_adds_up_the_orders_of_a_customer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [pipeline] = python_blocks(ROOT / "README.md")
    (tmp_path / "totals_of_readme.py").write_text(pipeline, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    readme = importlib.import_module("totals_of_readme")
    with PipelineTest(readme.OrderTotals) as test:
        orders = [readme.Order("ann", Decimal(amount)) for amount in (5, 2)]
        test.source(readme.OrderTotals.orders).push(*orders)
        assert [each.total for each in test.sink(readme.OrderTotals.totals).read()] == [5, 7]


WITH_PYTHON = [
    page
    for page in PAGES
    if page.name != "README.md"
    and any(each.language == "python" and each.is_run and not each.title for each in blocks(page))
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[page.stem for page in WITH_PYTHON])
def test_the_python_of_a_page_runs_from_its_first_block_to_its_last(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"page_{page.stem.replace('-', '_')}"
    code = "\n\n".join(python_blocks(page))
    (tmp_path / f"{module}.py").write_text(code + "ran = True\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.import_module(module).ran


@pytest.mark.parametrize("block", of("toml"), ids=ids(of("toml")))
def test_toml_of_a_page_can_be_read(block: Block) -> None:
    tomllib.loads(block.code)


@pytest.mark.parametrize("block", of(*SHELL), ids=ids(of(*SHELL)))
def test_commands_of_a_page_have_options_that_exist(block: Block) -> None:
    for words in commands_of(block):
        parse(words)


def test_the_quickstart_is_the_pipeline_of_the_readme() -> None:
    files = {each.title: each.code for each in blocks(ROOT / "docs" / "quickstart.md")}
    assert [files["totals.py"]] == python_blocks(ROOT / "README.md")


def test_every_block_has_a_language_and_every_exception_a_reason() -> None:
    assert [each.place for each in ALL_BLOCKS if each.language not in LANGUAGES] == []
    exceptions = [each for each in ALL_BLOCKS if not each.is_run]
    assert [each.place for each in exceptions if len(each.directives["not run"].split()) < 3] == []
    assert len(exceptions) <= NOT_RUN_MAX, ids(exceptions)


@pytest.mark.parametrize(
    "page", WITH_BLOCKS, ids=[str(page.relative_to(ROOT)) for page in WITH_BLOCKS]
)
def test_a_page_has_no_block_without_a_fence(page: Path) -> None:
    assert indented_blocks(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_each_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page, page.read_text(encoding="utf-8")) == []


def test_a_broken_link_is_found() -> None:
    text = "[a](nowhere.md) [b](README.md#no-such-heading) [c](README.md#guarantees)"
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md", "README.md#no-such-heading"]


def test_blocks_have_their_title_their_place_and_their_comments() -> None:
    text = """Words.

<!-- not run: it needs a bucket -->
<!-- exit code: 2 -->
```sh
tidegate run a:A
```

  ```python title="a.py"
  x = 1
  ```
"""
    run, file = blocks_of(Path("a.md"), text)
    assert (run.place, run.is_run, run.directives["exit code"]) == ("a.md:5", False, "2")
    assert (file.title, file.code, file.is_run) == ("a.py", "x = 1\n", True)


def test_a_block_without_a_fence_is_found_and_text_of_a_list_is_not() -> None:
    assert indented_blocks("Words.\n\n    tidegate run\n") == ["tidegate run"]
    assert indented_blocks("- one\n\n    text of one\n\n1. two\n\n   text of two\n") == []


@pytest.mark.parametrize("wrong", ["tidegate run a:A --no-such", "tidegate kafka down --nodes 3"])
def test_a_wrong_command_is_found(wrong: str) -> None:
    block = Block(Path("a.md"), 1, "sh", "", f"x=$(tidegate config)\necho | {wrong} | cat\n")
    right, found = commands_of(block)
    parse(right)
    assert found == wrong.split()
    with pytest.raises(Exception, match=r"(?i)no such option"):
        parse(found)
