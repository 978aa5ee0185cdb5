"""The built wheel in a clean environment: what `pip install tidegate` gives to a user.

The environment has the wheel and its dependencies, in the versions of this repository's lock, and
nothing else: no development tools, no greenlet, no Spark.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.running import in_time
from integration.support.user_project import TOTALS, Folder

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")

pytestmark = pytest.mark.timeout(240)

IMPORT_ALL = """
import importlib, pkgutil, sys
import tidegate
missing = set()
for found in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
    if found.name.startswith("tidegate.backfill.spark."):
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_no_module_of_the_wheel_needs_a_package_that_the_wheel_does_not_require(
    clean: Path, tmp_path: Path
) -> None:
    """Only the executor of Spark needs an extra."""
    assert run(tmp_path, clean / "python", "-W", "ignore", "-c", IMPORT_ALL).strip() == ""
    installed = run(tmp_path, UV, "pip", "list", "--python", clean / "python", "--format", "freeze")
    names = {line.partition("==")[0] for line in installed.split()}
    assert not {"greenlet", "pytest", "hypothesis", "pyspark", "jgo", "psutil"} & names


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.kafka
def test_commands_in_the_readme_of_a_new_project_work_in_order(wheel: Path, tmp_path: Path) -> None:
    """The environment has what the first command of the README installs, and nothing else."""
    folder = tmp_path / "clicks"
    run(tmp_path, UV, "venv", "--quiet", "--python", sys.executable, "venv")
    bin_ = tmp_path / "venv" / "bin"
    locked = ("--constraints", ROOT / "requirements.lock", "--only-binary", ":all:", "--quiet")
    found = f"tidegate[broker] @ {wheel.as_uri()}"
    run(tmp_path, UV, "pip", "install", "--python", bin_ / "python", *locked, found, "pytest")
    run(tmp_path, bin_ / "tidegate", "new", "clicks")
    text = (folder / "README.md").read_text()
    lines = [line.partition("  #")[0].strip() for line in text.splitlines() if line[:4] == "    "]
    assert lines.pop(0) == 'pip install "tidegate[broker]" pytest'
    environment = {"PATH": f"{bin_}:{os.environ['PATH']}", "HOME": os.environ["HOME"]}
    address, output, began = "", tmp_path / "output", list[subprocess.Popen[bytes]]()
    try:
        for line in lines:
            command = line.replace("ADDRESS", address)
            if command == "tidegate dev" or command.startswith("tidegate run "):
                with output.open("wb") as file:
                    began.append(
                        subprocess.Popen(
                            command.split(),
                            cwd=folder,
                            env=environment,
                            stdout=file,
                            stderr=subprocess.STDOUT,
                        )
                    )
                await_text(output, ": running", began[-1])
                if command == "tidegate dev":
                    began[-1].send_signal(signal.SIGINT)
                    assert began[-1].wait(60) == 0, output.read_text()
                continue
            done = in_shell(command, folder, environment)
            if command == "tidegate kafka up":
                address = done.splitlines()[-1]
            if " read " in command:
                assert '"total":"5"' in done
            if command.startswith("tidegate stop "):
                assert began[-1].wait(60) == 0
    finally:
        for process in began:
            process.kill()
            process.wait()
        if address:
            in_shell("tidegate kafka down --wipe", folder, environment)
    done_lines = [line.split()[1] for line in lines if line.startswith("tidegate ")]
    assert done_lines == ["dev", "kafka", "run", "kafka", "check", "stop", "diff", "kafka"]


def in_shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == 0, command + done.stdout + done.stderr
    return done.stdout


def await_text(output: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    end_s = time.monotonic() + 90
    while text not in output.read_text(errors="replace"):
        assert process.poll() is None, output.read_text()
        in_time(time.monotonic() < end_s, output.read_text())
        time.sleep(0.1)


def test_wheel_has_the_package_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {"tidegate", names[-1].partition("/")[0]}
    assert "tidegate/py.typed" in names
    assert "tidegate/default.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
