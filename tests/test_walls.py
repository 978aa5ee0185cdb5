"""The walls between the rooms hold, and would be seen to fall.

The contracts are in pyproject.toml (`[tool.importlinter]`). They are checked on the tree, and on
copies of it with one forbidden import each: a contract that lets those pass guards nothing.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
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
        "framework/tidegate/controlplane/dispatcher/__init__.py",
        "import tidegate.dataplane",
        "knows nothing of the data plane",
    ),
    ("framework/tidegate/checkpoint/__init__.py", "import asyncio", "are pure"),
    ("framework/tidegate/protocol/__init__.py", "import time", "are pure"),
    ("framework/tidegate/slot/machine.py", "import random", "are pure"),
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


def test_the_walls_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("path", "line", "contract"), BREACHES)
def test_a_breach_is_seen(tmp_path: Path, path: str, line: str, contract: str) -> None:
    for top in ("framework", "pipelines"):
        shutil.copytree(ROOT / top, tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path / path
    text = target.read_text(encoding="utf-8") if target.exists() else ""
    target.write_text(f"{text}\n{line}\n", encoding="utf-8")
    done = lint(tmp_path)
    assert done.returncode != 0
    broken = [line for line in done.stdout.splitlines() if BROKEN.search(line)]
    assert any(contract in line for line in broken), done.stdout + done.stderr


@pytest.mark.parametrize("name", ["checker.py", "watching.py"])
def test_what_judges_imports_nothing_of_ours(name: str) -> None:
    text = (ROOT / "integration" / name).read_text(encoding="utf-8")
    foreign = imported(text) - sys.stdlib_module_names
    assert foreign <= {"confluent_kafka"}


def test_imports_are_found_wherever_they_stand() -> None:
    text = "import a.b\ndef f():\n    from c.d import e\nfrom . import g\n"
    assert imported(text) == {"a", "c", "."}


def imported(text: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." if node.level else (node.module or "").split(".")[0])
    return found
