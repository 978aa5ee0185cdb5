"""Says which words, openings and sentences of the repository have a better form.

`prose.py` finds the prose and `words.toml` has the words. A file that still has complaints is
listed in `words_allowed.toml` with their number. That number may only fall: a file with fewer
complaints than its number fails too, until the number is lowered.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.repository.prose import ROOT, complaints, files_below

READ = [
    "framework",
    "pipelines",
    "integration",
    "tests",
    "docs",
    "docker",
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "pyproject.toml",
]
EVIDENCE = Path("docs/evidence")
GENERATED = {EVIDENCE / f"{page}.md" for page in ("kill-matrix", "mutants", "benchmarks")}
OWN = {
    Path("tests/repository/words.toml"),
    Path("tests/repository/test_words.py"),
    Path("tests/repository/words_allowed.toml"),
}


def allowed() -> dict[str, int]:
    with (ROOT / "tests" / "repository" / "words_allowed.toml").open("rb") as file:
        return tomllib.load(file)


@pytest.mark.timeout(300)
def test_number_of_prose_complaints_of_each_file_is_as_allowed() -> None:
    limits, wrong = allowed(), []
    for path in files_below(READ):
        if path in GENERATED | OWN:
            continue
        found = complaints(path, (ROOT / path).read_text(encoding="utf-8"))
        limit = limits.pop(path.as_posix(), 0)
        if len(found) > limit:
            wrong += [f"{path}:{each}" for each in found]
            wrong.append(f"{path}: {len(found)} complaints, {limit} allowed")
        elif len(found) < limit:
            wrong.append(f"{path}: lower its number in words_allowed.toml to {len(found)}")
    wrong += [f"{gone}: remove it from words_allowed.toml" for gone in limits]
    assert not wrong, "\n" + "\n".join(wrong)


LONG = "word " * 31
BAD = [
    ("x.py", '"""Deposed attempts end."""', "'Deposed'"),
    ("x.py", 'def f() -> None:\n    """Of the job: its name."""', "opens with 'Of'"),
    ("x.py", 'class A:\n    b: int\n    """Of the job."""', "opens with 'Of'"),
    ("x.py", f"x = 1\n# {LONG}", "31 words"),
    ("x.py", f"x = 1\n# {LONG[:80]}\n# {LONG[80:]}", "31 words"),
    ("x.py", "x = 1  # nobody knows", "'nobody'"),
    ("framework/x.py", 'error("The slot goes on here")', "'goes on'"),
    ("framework/x.py", 'error(f"The slot {name} goes on")', "'goes on'"),
    ("x.py", "class DeposedError(Exception): ...", "the name is FencedError"),
    ("x.py", "def f(DeposedError: int) -> None: ...", "the name is FencedError"),
    ("x.toml", "a = 1  # nobody knows", "'nobody'"),
    ("x.md", f"A page.\n\n- {LONG}", "31 words"),
    ("x.md", "| cell | nobody |", "'nobody'"),
    ("x.md", "Lines that\ngo\non.", "'go on'"),
]


@pytest.mark.parametrize(("path", "text", "said"), BAD)
def test_bad_prose_of_each_kind_gets_one_complaint(path: str, text: str, said: str) -> None:
    (found,) = complaints(Path(path), text)
    assert said in found


GOOD = [
    ("x.py", '"""Fenced attempts end."""\n\nclass A:\n    """A slot. To end it, stop it."""'),
    ("x.py", 'error("The slot goes on here")'),
    ("x.py", "x = 1  # `goes on` is code"),
    ("x.py", "x = 1  # noqa: S101 nobody"),
    ("x.py", '"""A job ends.\n\nFor example:\n\n    nobody\n"""'),
    ("x.md", "```\nnobody\n```\n\n    nobody\n\n# Nobody\n"),
]


@pytest.mark.parametrize(("path", "text"), GOOD)
def test_good_prose_and_code_get_no_complaint(path: str, text: str) -> None:
    assert complaints(Path(path), text) == []
