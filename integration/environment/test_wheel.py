"""The built wheel in a clean environment: what `pip install tidegate` gives to a user.

The environment has the wheel and its dependencies, in the versions of this repository's lock, and
nothing else: no development tools, no greenlet, no Spark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.user_project import TOTALS, Folder

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.timeout(240)

IMPORT_ALL = """
import importlib, pkgutil, sys
import tidegate
missing = set()
for found in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
    if found.name.startswith(("tidegate.sim.", "tidegate.backfill.spark.")):
        continue
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ModuleNotFoundError as error:
        missing.add(f"{found.name} needs {error.name}")
print(*sorted(missing), sep="\\n")
"""

TEST = """
from tidegate.testing import PipelineTest
from totals import Order, Totals

with PipelineTest(Totals) as test:
    test.source(Totals.orders).push(Order("ann", 5), Order("ann", 2))
    print([each.total for each in test.sink(Totals.totals).read()])
"""

METADATA = """# /// script
# requires-python = ">=3.11"
# dependencies = ["tidegate"]
# [tool.uv]
# constraint-dependencies = LOCKED
# ///
"""
RUN = """

if __name__ == "__main__":
    print(Totals().run(kafka="{kafka}", bounded=True, quiet=True).ended)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, UV, "build", "--wheel", "--no-build-isolation", "--quiet", "--out-dir", folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with the wheel alone."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    run(ROOT, UV, "venv", "--quiet", "--python", sys.executable, venv)
    python = venv / "bin" / "python"
    locked = ("--constraints", ROOT / "requirements.lock", "--only-binary", ":all:")
    run(ROOT, UV, "pip", "install", "--quiet", "--python", python, *locked, wheel)
    return python.parent


def run(folder: Path, *words: object) -> str:
    done = subprocess.run(
        [str(each) for each in words],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_clean_environment_runs_the_command_and_a_test_of_a_pipeline(
    clean: Path, tmp_path: Path
) -> None:
    assert "Usage: tidegate" in run(tmp_path, clean / "tidegate", "--help")
    names = {"{job}": "totals", "{orders}": "orders", "{totals}": "totals"}
    text = TOTALS
    for placeholder, name in names.items():
        text = text.replace(placeholder, name)
    (tmp_path / "totals.py").write_text(text)
    (tmp_path / "check.py").write_text(TEST)
    assert run(tmp_path, clean / "python", "check.py") == "[5, 7]\n"


def test_no_module_of_the_wheel_needs_a_package_that_the_wheel_does_not_require(
    clean: Path, tmp_path: Path
) -> None:
    """Only the simulator and the executor of Spark need an extra."""
    assert run(tmp_path, clean / "python", "-W", "ignore", "-c", IMPORT_ALL).strip() == ""
    installed = run(tmp_path, UV, "pip", "list", "--python", clean / "python", "--format", "freeze")
    names = {line.partition("==")[0] for line in installed.split()}
    assert not {"greenlet", "pytest", "hypothesis", "pyspark", "jgo", "psutil"} & names


@pytest.mark.kafka
def test_one_file_that_names_its_dependencies_runs_with_uv_alone(
    kafka: Kafka, wheel: Path, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(30)
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    versions = re.findall(r"^([\w.-]+==[\w.]+) ", lock, re.MULTILINE)
    text = METADATA.replace("LOCKED", str(versions)) + TOTALS + RUN
    file = folder.write("totals.py", text.replace("{kafka}", kafka.bootstrap))
    options = ("--quiet", "--python", sys.executable, "--find-links", wheel.parent)
    done = run(tmp_path, UV, "run", *options, file)
    assert done == "finished\n"
    folder.assert_exact(30)


def test_wheel_has_the_package_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"tidegate", names[-1].partition("/")[0]}
    assert "tidegate/py.typed" in names
    assert "tidegate/default.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
