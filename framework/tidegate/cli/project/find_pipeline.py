"""Finds the pipeline of a project, for commands that may be called without MODULE:CLASS.

The module reads the files and imports none of them, so that an error in one of them does no harm.
A pipeline is a class whose statement has the base `Pipeline` and the keyword `name=`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tidegate.drivers.file_watch import watched_folders
from tidegate.errors import RefusedError


def find_pipeline(folder: Path) -> str:
    """Return the only pipeline in a folder, as MODULE:CLASS. RefusedError if there is not exactly
    one.
    """
    found = sorted(pipelines_in(folder))
    if len(found) == 1:
        return found[0]
    if found:
        raise RefusedError(
            f"This folder has several pipelines. Give one of them: {', '.join(found)}."
        )
    raise RefusedError(
        "There is no pipeline in this folder: no file has a class whose statement has the base "
        "Pipeline and a name=. Run the command in the folder of the project, or give MODULE:CLASS."
    )


def pipelines_in(folder: Path) -> Iterator[str]:
    """Yield every pipeline in the modules of a folder, without those in `tests`."""
    for place in watched_folders(folder):
        parts = place.relative_to(folder).parts
        if "tests" in parts or not all(part.isidentifier() for part in parts):
            continue
        for path in place.glob("*.py"):
            module = parts if path.stem == "__init__" else (*parts, path.stem)
            if module and path.stem.isidentifier():
                yield from (f"{'.'.join(module)}:{name}" for name in _classes(path))


def _classes(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return  # the import of the module reports the error, if the pipeline needs the module
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if "Pipeline" in bases and any(each.arg == "name" for each in node.keywords):
                yield node.name
