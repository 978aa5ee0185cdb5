"""`tidegate new`: the project that it makes is linted and typed, and its tests pass at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.repository.prose import ROOT, complaints
from tidegate.cli.kafka.commands import DEFAULT_VERSION
from tidegate.cli.main import app
from tidegate.cli.project.new import FILES, NAME_LENGTH_MAX, TEMPLATES
from tidegate.errors import RefusedError

LONG = "a" * NAME_LENGTH_MAX


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the longest name that is allowed."""
    folder = tmp_path_factory.mktemp("new") / LONG
    done = CliRunner().invoke(app, ["new", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


def in_project(folder: Path, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ruff", "check", "--no-cache", "."),
        ("ruff", "format", "--no-cache", "--check", "."),
        ("mypy", "--cache-dir", os.devnull),
        ("pytest", "-q", "-p", "no:cacheprovider"),
        ("tidegate.cli.main", "check", f"{LONG}.pipeline:OrderTotals"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_new_project_passes(project: Path, words: tuple[str, ...]) -> None:
    in_project(project, *words)


def test_text_of_a_new_project_is_plain_english(project: Path) -> None:
    for name in ("README.md", "tidegate.toml", "tests/test_pipeline.py"):
        assert complaints(Path(name), (project / name).read_text()) == []


def test_every_template_is_used_and_is_in_the_wheel(tmp_path: Path) -> None:
    assert {path.name for path in TEMPLATES.iterdir()} == set(FILES.values())
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = zipfile.ZipFile(wheel).namelist()
    assert {f"tidegate/cli/project/template/{name}" for name in FILES.values()} <= set(packed)


def test_command_prints_what_it_made_and_the_next_two_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CliRunner().invoke(app, ["new", "clicks"]).stdout
    golden = ROOT / "tests" / "golden" / "messages" / "new-project.txt"
    assert text == golden.read_text()
    found = json.loads(CliRunner().invoke(app, ["new", "views", "--json"]).stdout)
    assert found["folder"] == "views"
    assert found["next"] == ["cd views && pytest", "tidegate dev"]
    made = {str(path.relative_to("views")) for path in Path("views").rglob("*") if path.is_file()}
    assert made == set(found["files"])
    assert len(made) == len(FILES)


def test_folder_with_files_is_refused_and_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "notes").write_text("mine")
    done = CliRunner().invoke(app, ["new", "clicks"])
    assert isinstance(done.exception, RefusedError)
    assert "'clicks' is not empty" in str(done.exception)
    assert [path.name for path in (tmp_path / "clicks").iterdir()] == ["notes"]


def test_empty_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clicks").mkdir()
    assert CliRunner().invoke(app, ["new", "clicks"]).exit_code == 0


@pytest.mark.parametrize(
    ("name", "why", "use"),
    [
        ("my-clicks", "lower-case letters", "my_clicks"),
        ("Clicks", "lower-case letters", "clicks"),
        ("3clicks", "begins with a letter", "pipeline_3clicks"),
        ("class", "a keyword of Python", "class_pipeline"),
        ("json", "Python has a module", "json_pipeline"),
        ("tests", "another package", "tests_pipeline"),
        ("pydantic", "another package", "pydantic_pipeline"),
        ("a" * (NAME_LENGTH_MAX + 1), "40 at most", LONG),
    ],
)
def test_name_that_cannot_be_a_module_is_refused_with_one_that_can(
    name: str, why: str, use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["new", name])
    assert isinstance(done.exception, RefusedError)
    assert why in str(done.exception)
    assert str(done.exception).endswith(f"Use: tidegate new {use}")
    assert not list(tmp_path.iterdir())


# --- the files for tools that do not run here -----------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ("vendor.github-workflows", ".github/workflows/test.yml"),
        ("vendor.compose-spec", "compose.yaml"),
        ("vendor.compose-spec", str(ROOT / "docker" / "compose.yaml")),
    ],
)
def test_workflow_and_compose_files_fit_their_schemas(
    project: Path, schema: str, name: str
) -> None:
    in_project(project, "check_jsonschema", "--builtin-schema", schema, name)


def test_schema_refuses_a_workflow_with_a_misspelt_key(project: Path, tmp_path: Path) -> None:
    workflow = tmp_path / "test.yml"
    text = (project / ".github" / "workflows" / "test.yml").read_text()
    workflow.write_text(text.replace("runs-on:", "runs-at:"))
    words = ["check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run([sys.executable, "-m", *words], check=False, capture_output=True)
    assert done.returncode == 1


def test_broker_of_the_compose_file_has_the_version_of_every_other_broker(project: Path) -> None:
    image = f"image: apache/kafka:{DEFAULT_VERSION}\n"
    assert image in (project / "compose.yaml").read_text()
    ours = (ROOT / "docker" / "compose.yaml").read_text()
    assert f"apache/kafka:{DEFAULT_VERSION}}}" in ours


def test_commands_of_the_workflow_pass_in_order(project: Path, tmp_path: Path) -> None:
    """The install has no dependencies here, because they are in this environment already."""
    copy = tmp_path / LONG
    shutil.copytree(project, copy)
    lines = (project / ".github" / "workflows" / "test.yml").read_text().splitlines()
    commands = [line.partition("- run: ")[2] for line in lines if "- run: " in line]
    assert commands[0] == "pip install . pytest"
    assert len(commands) == 3
    target = tmp_path / "installed"
    install = "pip install --quiet --no-deps --no-build-isolation --no-index --target"
    for command in (f"{install} {target} .", *commands[1:]):
        done = subprocess.run(
            [sys.executable, "-m", *command.replace("tidegate ", "tidegate.cli.main ", 1).split()],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(target)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, command + done.stdout + done.stderr
    assert (target / LONG / "pipeline.py").exists()
