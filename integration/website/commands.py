"""The reference of the command line, from the help of each command."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import cast

import typer

from tidegate.cli.main import app

Command = typer.core.TyperCommand | typer.core.TyperGroup


def commands_text() -> str:
    """Return one section of Markdown for each command."""
    return "\n".join(line for path, command in all_commands() for line in _section(path, command))


def all_commands() -> Iterator[tuple[str, Command]]:
    """Yield each command with its words: `tidegate kafka up`. A group comes before its commands."""
    yield from _below("tidegate", cast("Command", typer.main.get_command(app)))


def _below(path: str, command: Command) -> Iterator[tuple[str, Command]]:
    if path != "tidegate":
        yield path, command
    children: dict[str, Command] = getattr(command, "commands", {})
    for name, each in children.items():
        yield from _below(f"{path} {name}", each)


def _section(path: str, command: Command) -> Iterator[str]:
    level = "#" * path.count(" ")
    yield f"\n#{level} `{path}`\n"
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        text = " ".join(paragraph.split())
        if text.startswith(("Example: ", "tidegate ")):
            yield f"\n```sh\n{text.removeprefix('Example: ')}\n```\n"
        else:
            yield f"\n{_escaped(text)}\n"
    context = command.context_class(command, info_name=path)
    records = [each.get_help_record(context) for each in command.params]
    if any(records):
        yield "\n| argument or option | meaning |\n| --- | --- |"
        for left, right in filter(None, records):
            usage = re.sub(r"<list\[(.+?)\]>", r"<\1>, …", left)
            yield f"| `{usage}` | {_escaped(right)} |"
        yield ""


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, except for its code in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    plain = [re.sub(r"([*_<\[|])", r"\\\1", part) for part in parts[::2]]
    return "".join(part for pair in zip(plain, [*parts[1::2], ""], strict=True) for part in pair)
