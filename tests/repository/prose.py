"""Finds the prose of the repository and what is wrong with it, for `test_words.py`.

Prose is what a person reads: docstrings, comments, texts in strings of the framework, comments of
TOML files, and Markdown. `words.toml` lists words that have a better one. This module reads and
counts; it decides nothing. Run it to see the complaints of some files:

    python -m tests.repository.prose framework/tidegate/checkpoint
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
MULTILINE_ALL = re.MULTILINE | re.DOTALL
SENTENCE_WORDS_MAX = 30
MESSAGE_WORDS_MIN = 3  # fewer is a key or a name

Kind = Literal["module", "docstring", "attribute", "comment", "message", "page"]


@dataclass(frozen=True)
class Prose:
    """One text: the line on which it starts, what it is, and its words on one line."""

    line: int
    kind: Kind
    text: str


@dataclass(frozen=True)
class Word:
    """An entry of `words.toml`: what to find, and what to write instead."""

    found: re.Pattern[str]
    instead: str


@dataclass(frozen=True)
class Words:
    """The content of `words.toml`."""

    phrases: tuple[Word, ...]
    identifiers: dict[str, str]
    openings: frozenset[str]


@cache
def words() -> Words:
    """Read `words.toml` once."""
    with (ROOT / "tests" / "repository" / "words.toml").open("rb") as file:
        found = tomllib.load(file)
    phrases = (
        Word(re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE), instead)
        for phrase, instead in found["phrases"].items()
    )
    return Words(tuple(phrases), found["identifiers"], frozenset(found["openings"]["words"]))


# --- what is read -------------------------------------------------------------------------------


def prose_of(path: Path, text: str) -> list[Prose]:
    """The prose of one file, by the end of its name."""
    match path.suffix:
        case ".py":
            messages = path.parts[0] == "framework"
            return [*_docstrings(text), *_comments(text), *(_messages(text) if messages else ())]
        case ".toml":
            return list(_toml_comments(text))
        case ".md":
            return list(_paragraphs(text))
        case _:
            return []


@lru_cache(maxsize=1)  # one file is read several times in turn
def _walked(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(ast.parse(text)))


def _docstrings(text: str) -> Iterator[Prose]:
    for node in _walked(text):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for index, each in enumerate(body):
            found = _text_of(each)
            if found is None:
                continue
            if index:
                kind: Kind = "attribute"
            else:
                kind = "module" if isinstance(node, ast.Module) else "docstring"
            yield Prose(each.lineno, kind, _without_code(found))


def _text_of(node: ast.AST) -> str | None:
    """Return the text of a statement that is only a text, with its indentation removed."""
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return inspect.cleandoc(text)
        case _:
            return None


def _comments(text: str) -> Iterator[Prose]:
    """Comments on successive lines are one text; one behind code stands alone."""
    start, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or re.match(r"# (noqa|type:|---)|#!", token.string):
            continue
        row, column = token.start
        alone = not token.line[:column].strip()
        if lines and not (alone and row == start + len(lines)):
            yield Prose(start, "comment", _without_code("\n".join(lines)))
            lines = []
        if not lines:
            start = row
        lines.append(token.string.lstrip("# "))
    if lines:
        yield Prose(start, "comment", _without_code("\n".join(lines)))


def _messages(text: str) -> Iterator[Prose]:
    nodes = _walked(text)
    prose = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and _text_of(node) is not None
    }
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = (each.value if isinstance(each, ast.Constant) else "X" for each in node.values)
            found = "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in prose or id(node) in inner:
                continue
            found = node.value
        else:
            continue
        if len(re.findall(r"[A-Za-z]+", found)) >= MESSAGE_WORDS_MIN and " " in found:
            yield Prose(node.lineno, "message", _without_code(found))


def _toml_comments(text: str) -> Iterator[Prose]:
    for number, line in enumerate(text.splitlines(), 1):
        if "#" in line and line.strip("# "):
            yield Prose(number, "comment", _without_code(line.split("#", 1)[1]))


def _paragraphs(text: str) -> Iterator[Prose]:
    """Paragraphs, list items and cells of tables; no headings and no code."""
    text = re.sub(
        r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text, flags=MULTILINE_ALL
    )
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begins = re.match(r"\s*([#|>*-]|\d+\.) ?", line)
        if lines and (begins or not line.strip()):
            yield Prose(start, "page", _without_code("\n".join(lines)))
            lines = []
        if line.startswith("|"):
            for cell in line.strip("| ").split(" | "):
                yield Prose(number, "page", _without_code(cell))
        elif line.strip() and not line.startswith(("#", "    ")):
            start = start if lines else number
            lines.append(re.sub(r"^\s*([>*-]|\d+\.) ", "", line))


def _without_code(text: str) -> str:
    """The text with each piece of code, link and indented block as the one word X."""
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line for line in paragraph.splitlines() if not re.match(r"\s{4,}|\s*>>>", line)]
        paragraphs.append(" ".join(line.strip() for line in lines))
    plain = "\n".join(paragraphs)
    plain = re.sub(r"``?[^`]*``?", "X", plain)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    return plain.strip()


# --- what is wrong ------------------------------------------------------------------------------


def complaints(path: Path, text: str) -> list[str]:
    """Complaints about the prose and the names of one file, each with its line."""
    found = [f"{each.line}: {what}" for each in prose_of(path, text) for what in _wrong(each)]
    if path.suffix == ".py":
        found += _old_identifiers(text)
    return found


def _wrong(prose: Prose) -> Iterator[str]:
    for word in words().phrases:
        for match in word.found.finditer(prose.text):
            yield f"{match[0]!r}: write {word.instead}"
    if prose.kind in {"docstring", "attribute"}:
        opening = prose.text.split(maxsplit=1)[0] if prose.text else ""
        if opening.strip(",") in words().openings:
            yield f"opens with {opening!r}: start with a noun or a verb"
    if prose.kind != "message":
        for sentence in re.split(r"(?<=[.!?:;])\s+|\n", prose.text):
            count = len(re.findall(r"[A-Za-z0-9][\w'/-]*", sentence))
            if count > SENTENCE_WORDS_MAX:
                yield f"{count} words in one sentence: {sentence[:50]!r}"


def _old_identifiers(text: str) -> Iterator[str]:
    old = words().identifiers
    for node in _walked(text):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                name = node.name
            case ast.arg():
                name = node.arg
            case ast.Name(ctx=ast.Store()):
                name = node.id
            case _:
                continue
        if name in old:
            yield f"{node.lineno}: {name}: the name is {old[name]}"


def files_below(paths: list[str]) -> list[Path]:
    """Python, TOML and Markdown files below these paths, relative to the repository."""
    found = []
    for each in paths:
        top = ROOT / each
        inside = top.rglob("*") if top.is_dir() else [top]
        found += [
            path.relative_to(ROOT) for path in inside if path.suffix in {".py", ".toml", ".md"}
        ]
    return sorted(found)


if __name__ == "__main__":
    total = 0
    for path in files_below(sys.argv[1:] or ["framework"]):
        for complaint in complaints(path, (ROOT / path).read_text(encoding="utf-8")):
            total += 1
            print(f"{path}:{complaint}")
    print(f"{total} complaints", file=sys.stderr)
