"""`tidegate new`: makes a project with a pipeline that runs and tests that pass.

The files are templates in `template/`, which are part of the package. The test
`tests/cli/test_new.py` makes a project and runs its tests, ruff and mypy on it. The command never
changes a file.
"""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tidegate.message_text import counted
from tidegate.terminal import options as o

TEMPLATES: Final = Path(__file__).with_name("template")

FILES: Final = {
    ".github/workflows/test.yml": "test.yml.template",
    ".gitignore": "gitignore.template",
    "README.md": "README.md.template",
    "compose.yaml": "compose.yaml.template",
    "$module/__init__.py": "init.py.template",
    "$module/pipeline.py": "pipeline.py.template",
    "$module/records.py": "records.py.template",
    "pyproject.toml": "pyproject.toml.template",
    "tests/test_pipeline.py": "test_pipeline.py.template",
    "tidegate.toml": "tidegate.toml.template",
}
"""The template of each file of a project."""

NAME_LENGTH_MAX: Final = 40
"""The maximum length of a name, with which no line of a template is longer than 100 columns."""

TAKEN: Final = frozenset({"tests", "tidegate"})
"""Names that the project itself needs for other things."""


def new(
    name: Annotated[
        str, typer.Argument(help="The folder to make. Its last part names the module.")
    ],
    as_json: o.AsJson = False,
) -> None:
    """Make a project: a pipeline, its record types, tests, settings, a compose file and CI.

    The folder must be empty or not exist. Its tests pass and its pipeline runs at once.

    Example: tidegate new clicks
    """
    folder = Path(name)
    module = folder.name
    _check_name(module)
    files = _write_project(folder, module)
    commands = [f"cd {folder} && pytest", "tidegate dev"]
    if as_json:
        print(json.dumps({"folder": str(folder), "files": files, "next": commands}))
        return
    print(f"Made {folder} with {counted(len(files), 'file')}:")
    for file in files:
        print(f"    {file}")
    print("Next:")
    print(f"    {commands[0]:<24} # test the pipeline without Kafka")
    print(f"    {commands[1]:<24} # start a broker, the topics and the pipeline")


def _check_name(module: str) -> None:
    """Raise RefusedError if the project's module cannot have this name."""
    from tidegate.errors import RefusedError

    if re.fullmatch(r"[a-z][a-z0-9_]*", module) is None or len(module) > NAME_LENGTH_MAX:
        raise RefusedError(
            f"{module!r} cannot be the name of the project's module: that has lower-case letters, "
            f"digits and underscores, {NAME_LENGTH_MAX} at most, and begins with a letter. "
            f"Use: tidegate new {_suggestion(module)}"
        )
    why = ""
    if keyword.iskeyword(module) or keyword.issoftkeyword(module):
        why = "it is a keyword of Python"
    elif module in sys.stdlib_module_names:
        why = "Python has a module of this name"
    elif module in TAKEN or importlib.util.find_spec(module) is not None:
        why = "another package has this name"
    if why:
        raise RefusedError(
            f"{module!r} cannot be the name of the project's module: {why}. "
            f"Use: tidegate new {_suggestion(module + '_pipeline')}"
        )


def _suggestion(module: str) -> str:
    """Return a name that is similar and allowed."""
    plain = re.sub(r"[^a-z0-9]+", "_", module.lower()).strip("_")
    first = plain if re.match(r"[a-z]", plain) else f"pipeline_{plain}".rstrip("_")
    return first[:NAME_LENGTH_MAX]


def _write_project(folder: Path, module: str) -> list[str]:
    """Write all files, and return their paths in the folder. Raise RefusedError if the folder has
    files, or cannot be written.
    """
    from string import Template

    from tidegate.errors import RefusedError

    names = {"module": module, "job": module.strip("_").replace("_", "-")}
    written = []
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RefusedError(
                f"The folder {str(folder)!r} is not empty. Choose another name, or empty it."
            )
        for path, template in FILES.items():
            file = Template(path).substitute(names)
            text = (TEMPLATES / template).read_text(encoding="utf-8")
            target = folder / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("x", encoding="utf-8") as opened:
                opened.write(Template(text).substitute(names))
            written.append(file)
    except OSError as error:
        raise RefusedError(
            f"The project cannot be written to {str(folder)!r}: {error.strerror}. Choose another "
            "folder."
        ) from error
    return written
