"""What exists follows the recipes of ARCHITECTURE.md ("Add a setting"), so that they stay true.

A recipe is a numbered list of files, each with what to write there. The tests read the list, and
look in its files for each setting, metric, command and source that exists. Toys are added by the
recipes for operators and sinks (`tests/dataplane/test_new_kind.py`,
`tests/dataplane/test_new_sink.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import typer

import tidegate
from tests.repository.test_walls import modules_imported
from tidegate.api.connectors.source import Source
from tidegate.cli.main import app
from tidegate.config import Config
from tidegate.protocol.reports import JobReport
from tidegate.protocol.slot_metrics import SlotMetrics

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "framework" / "tidegate"
RECIPES = re.compile(r"^### Add an? (.*)\n((?:(?!^##).*\n)*)", re.MULTILINE)
KINDS = ["kind of operator", "sink", "source", "setting", "metric", "command"]


def recipes() -> dict[str, list[Path]]:
    """The files and folders of each recipe, in its order."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return {
        name: [_place(path) for path in re.findall(r"^\d\. `([^`]+)`", steps, re.MULTILINE)]
        for name, steps in RECIPES.findall(page)
    }


def _place(name: str) -> Path:
    return next(path for path in (PACKAGE / name, ROOT / name) if path.exists())


def text_of(place: Path) -> str:
    files = [place] if place.is_file() else sorted(place.rglob("*.*"))
    kept = [each for each in files if each.suffix in {".py", ".md", ".toml"}]
    return "\n".join(each.read_text(encoding="utf-8") for each in kept)


def without(place: Path, names: set[str]) -> set[str]:
    """The names that a file or folder does not have."""
    return names - set(re.findall(r"\w+", text_of(place)))


def test_page_has_a_recipe_for_each_kind_of_addition() -> None:
    found = recipes()
    assert list(found) == KINDS
    assert all(len(places) >= 2 for places in found.values())


# --- settings -----------------------------------------------------------------------------------


def settings(of: type) -> Iterator[str]:
    """The names of all settings, without those of their sections."""
    for each in dataclasses.fields(of):
        value = each.default_factory() if callable(each.default_factory) else each.default
        if dataclasses.is_dataclass(value):
            yield from settings(type(value))
        else:
            yield each.name


def test_each_setting_is_in_the_files_of_its_recipe_and_some_module_reads_it() -> None:
    names = set(settings(Config))
    assert len(names) > 50
    for place in recipes()["setting"]:
        assert without(place, names) == set(), place
    assert names - attributes_read(PACKAGE) == set()


def attributes_read(folder: Path) -> set[str]:
    """The names of all attributes that some module below a folder reads."""
    return {
        node.attr
        for path in folder.rglob("*.py")
        if path.name not in {"config.py", "config_load.py"}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }


# --- metrics ------------------------------------------------------------------------------------


def test_each_metric_of_a_job_is_in_the_files_of_its_recipe() -> None:
    names = set(SlotMetrics.__struct_fields__) & set(JobReport.__struct_fields__)
    assert len(names) >= 9
    counted, *places, shown = recipes()["metric"]
    assert (counted.name, shown.name) == ("counters.py", "display.py")
    for place in places:
        assert without(place, names) == set(), place
    assert without(counted, names) == {"lag", "watermark_ms", "watermark_held_by"}


@pytest.mark.parametrize("of", [SlotMetrics, JobReport])
def test_metrics_have_defaults_because_an_older_process_does_not_send_them(
    of: type[msgspec.Struct],
) -> None:
    required = {each.name for each in msgspec.structs.fields(of) if each.required}
    assert required <= {"job", "state"}


# --- commands -----------------------------------------------------------------------------------


def commands(of: typer.Typer, words: str = "tidegate") -> Iterator[tuple[str, str]]:
    """The words of each command, and the module that defines it."""
    for each in of.registered_commands:
        assert each.callback is not None
        name = each.name or each.callback.__name__.replace("_", "-")
        yield f"{words} {name}", each.callback.__module__
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{words} {group.name}")


def test_each_command_is_in_the_files_of_its_recipe() -> None:
    found = dict(commands(app))
    assert len(found) > 20
    defined, _, guides = recipes()["command"]
    for words, module in found.items():
        file = ROOT / "framework" / Path(*module.split(".")).with_suffix(".py")
        # `txn` is a tool of its own, and `completion` writes what a shell reads.
        assert defined in file.parents[1:] or file.parent.name == "txn" or "completion" in words
        assert words in text_of(guides), f"no guide has {words}"


# --- sources ------------------------------------------------------------------------------------


def sources() -> Mapping[str, str]:
    """The public classes of sources, each with its module."""
    public = [getattr(tidegate, name) for name in tidegate.__all__]
    classes = [each for each in public if isinstance(each, type)]
    return {each.__name__: each.__module__ for each in classes if issubclass(each, Source)}


def test_the_files_of_its_recipe_and_no_others_know_the_class_of_a_source() -> None:
    declared, *places = recipes()["source"]
    assert sources()
    for name, module in sources().items():
        assert declared in (ROOT / "framework" / Path(*module.split("."))).parents
        knowing = {
            path
            for path in PACKAGE.rglob("*.py")
            if f"{module}.{name}" in modules_imported(path.read_text(encoding="utf-8"))
            and declared not in path.parents
            and path.parent != PACKAGE
        }
        for place in places:
            assert any(path.is_relative_to(place) for path in knowing), place
        others = {path for path in knowing if not any(map(path.is_relative_to, places))}
        assert not others, f"the recipe has no step for {others}"
