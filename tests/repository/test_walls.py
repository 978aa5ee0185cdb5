"""The walls between the rooms hold, and would be seen to fall.

The contracts are in pyproject.toml (`[tool.importlinter]`). They are checked on the tree, and on
copies of it with one forbidden import each: a contract that lets those pass guards nothing.
"""

from __future__ import annotations

import ast
import graphlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
LINTER = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
BROKEN = re.compile(r" BROKEN(?: \(\d+ ignored imports?\))?$")

BREACHES = [
    ("framework/tidegate/ids.py", "import tidegate.graph", "go down only"),
    ("framework/tidegate/drivers/__init__.py", "import tidegate.controlplane", "go down only"),
    (
        "framework/tidegate/controlplane/client/__init__.py",
        "import tidegate.controlplane.jobmaster",
        "Inside the control plane",
    ),
    (
        "framework/tidegate/dataplane/state/__init__.py",
        "import tidegate.dataplane.sinks",
        "Inside the data plane",
    ),
    (
        "framework/tidegate/controlplane/jobmanager/__init__.py",
        "import tidegate.dataplane",
        "knows nothing of the data plane",
    ),
    ("framework/tidegate/checkpoint/__init__.py", "import asyncio", "are pure"),
    ("framework/tidegate/protocol/__init__.py", "import time", "are pure"),
    ("framework/tidegate/slot/machine.py", "import random", "are pure"),
    ("framework/tidegate/txn/text.py", "import time", "are pure"),
    ("framework/tidegate/dataplane/__init__.py", "import rocksdict", "Only drivers"),
    ("framework/tidegate/controlplane/__init__.py", "import grpc", "Only drivers"),
    ("framework/tidegate/backfill/__init__.py", "import pyspark.sql", "Only backfill.spark"),
    ("framework/tidegate/drivers/__init__.py", "from py4j import protocol", "Only backfill.spark"),
    ("framework/tidegate/slot/__init__.py", "import threading", "come through ports"),
    ("pipelines/__init__.py", "import tidegate.drivers", "Pipelines use only"),
]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LINTER, "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=folder,
        env={"PYTHONPATH": f"{folder / 'framework'}:{folder}", "COLUMNS": "300"},
        check=False,
        capture_output=True,
        text=True,
    )


def test_import_contracts_hold_in_the_source_tree() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("path", "line", "contract"), BREACHES)
def test_forbidden_import_breaks_its_import_contract(
    tmp_path: Path, path: str, line: str, contract: str
) -> None:
    for top in ("framework", "pipelines"):
        shutil.copytree(ROOT / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / path
    text = target.read_text(encoding="utf-8") if target.exists() else ""
    target.write_text(f"{text}\n{line}\n", encoding="utf-8")
    done = lint(tmp_path)
    assert done.returncode != 0
    broken = [line for line in done.stdout.splitlines() if BROKEN.search(line)]
    assert any(contract in line for line in broken), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["demo/checker.py", "support/watching.py"])
def test_output_checker_imports_no_module_of_the_project(name: str) -> None:
    text = (ROOT / "integration" / name).read_text(encoding="utf-8")
    foreign = imported(text) - sys.stdlib_module_names
    assert foreign <= {"confluent_kafka"}


@pytest.mark.parametrize(
    ("folder", "except_in", "forbidden"),
    [
        ("framework", set(), ("tests", "integration")),
        ("pipelines", set(), ("tests", "integration")),
        ("tests", {"harness", "golden"}, ("integration",)),
        ("integration/faults", set(), ("integration.bench",)),
        ("integration/support", set(), ("integration.bench", "integration.faults.kill_matrix")),
    ],
)
def test_a_folder_does_not_import_what_lies_above_it(
    folder: str, except_in: set[str], forbidden: tuple[str, ...]
) -> None:
    files = [
        path
        for path in (ROOT / folder).rglob("*.py")
        if path.relative_to(ROOT / folder).parts[0] not in except_in
    ]
    assert files
    wrong = [
        (path.relative_to(ROOT), name)
        for path in files
        for name in modules_imported(path.read_text(encoding="utf-8"))
        if any(name == each or name.startswith(f"{each}.") for each in forbidden)
    ]
    assert not wrong


def test_tidegate_has_no_import_cycle() -> None:
    graph = grimp.build_graph("tidegate", exclude_type_checking_imports=True, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    assert len(imports) > 100
    assert cycle(imports) == []
    assert "tidegate.api.steps.streams" in cycle(
        {**imports, "tidegate.api.connectors.sink": {"tidegate.api.steps.streams"}}
    )


def cycle(imports: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the modules of a cycle of imports; empty if no cycle exists."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


PURE = re.compile(r"\bpure\b", re.IGNORECASE)
SPEAK_OF_OTHERS = {
    "controlplane/__init__.py",  # of the machines in its rooms
    "controlplane/jobmaster/attempt.py",  # of the coordinator
    "controlplane/jobmaster/service.py",  # of its machine
    "drivers/storage/file_systems.py",  # of one function
}


def test_module_that_calls_itself_pure_is_covered_by_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (covered,) = [
        contract["source_modules"]
        for contract in settings["tool"]["importlinter"]["contracts"]
        if "are pure" in contract["name"]
    ]
    missing = [path for path in calls_itself_pure(ROOT) if not is_covered(path, covered)]
    assert not missing
    assert is_covered("slot/idle_wait.py", covered)
    assert not is_covered("slot/main.py", covered)


def calls_itself_pure(root: Path) -> set[str]:
    package = root / "framework" / "tidegate"
    found = set()
    for path in package.rglob("*.py"):
        prose = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if PURE.search(prose):
            found.add(str(path.relative_to(package)))
    assert found >= SPEAK_OF_OTHERS
    return found - SPEAK_OF_OTHERS


def is_covered(path: str, covered: list[str]) -> bool:
    """Whether a contract of these modules holds for a file: it names the module or a room above."""
    parts = ["tidegate", *Path(path).with_suffix("").parts]
    above = {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
    return bool(above & set(covered)) or parts[-1] == "machine"


def test_imports_are_found_at_module_level_and_in_functions() -> None:
    text = "import a.b\ndef f():\n    from c.d import e\nfrom . import g\n"
    assert imported(text) == {"a", "c", "."}


def imported(text: str) -> set[str]:
    """Return the names of the packages that a module imports."""
    return {name.split(".")[0] or "." for name in modules_imported(text)}


def modules_imported(text: str) -> set[str]:
    """Return the full names of the modules that a module imports; "" for a relative import."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "" if node.level else node.module or ""
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names if module)}
    return found


def test_full_names_of_imported_modules_are_found() -> None:
    assert modules_imported("from a.b import c, d\nimport e.f\nfrom . import g") == {
        *("a.b", "a.b.c", "a.b.d", "e.f", "")
    }
