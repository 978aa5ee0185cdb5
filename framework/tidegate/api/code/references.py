"""References to a pipeline class, as users write them on a command line.

A reference is a module or a file, and the name of a class: `pipelines.order_totals:OrderTotals`,
`totals.py:OrderTotals`. The class may be left out if the module declares one pipeline. This module
reads the text and looks for the file. It imports nothing: `code.py` does.

A file is imported as Python imports the files next to a script: as a module of its folder. If the
folder is a package, the module has its full name, and the folder above the package is first on the
path.
So the same file is the same module for the command, for the JobMaster and for every slot.

Invariant: a file never takes the name of a module that Python or tidegate needs. Such a file would
be imported in place of that module, or that module in place of the file.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.errors import PipelineError

EXAMPLE: Final = "pipelines.order_totals:OrderTotals"
_SUFFIX: Final = ".py"

NEEDED: Final = frozenset(
    {
        *("annotated_types", "confluent_kafka", "fastavro", "grpc", "kafka", "mmh3", "msgspec"),
        *("obstore", "pydantic", "pydantic_core", "rich", "rocksdict", "setproctitle"),
        *("tidegate", "typer"),
        *("typing_extensions", "typing_inspection", "tzdata", "watchfiles"),
    }
)
"""Top-level modules that tidegate imports in addition to Python's own. The folder of
the user's code comes first on the path, so a file of such a name would hide the module."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference after it was read."""

    text: str
    module: str
    class_name: str
    """The name of the class. It is empty if the reference names only the module or the file."""
    root: Path
    """The folder that comes first on the path when the module is imported."""
    file: Path | None
    """The file that the user named, or None if the reference names a module."""

    @property
    def shown(self) -> str:
        """The module or the file, as the user wrote it."""
        return self.text.removesuffix(f":{self.class_name}") if self.class_name else self.text


def read_reference(text: str, folder: Path) -> Reference:
    """Read a reference. `folder` is the folder in which relative paths and modules are looked for.

    PipelineError if the text has neither form, or if the file does not exist or cannot be a module.
    """
    where, colon, class_name = text.rpartition(":") if ":" in text else (text, "", "")
    named = class_name.isidentifier() if colon else True
    if named and where.endswith(_SUFFIX) and where != _SUFFIX:
        return _of_file(text, where, class_name, folder)
    # A file may have a name that no import statement can spell, as in `hourly-totals.py`.
    if not (named and where and all(part and "/" not in part for part in where.split("."))):
        raise PipelineError(
            f"{text!r} is not MODULE:CLASS or FILE.py:CLASS; write, say, {_example(text)}."
        )
    return Reference(text=text, module=where, class_name=class_name, root=folder, file=None)


def _of_file(text: str, where: str, class_name: str, folder: Path) -> Reference:
    file = Path(os.path.normpath(folder / where))
    if not file.is_file():
        found = "is a folder" if file.is_dir() else "does not exist"
        raise PipelineError(f"The file {file} {found}; a pipeline is in a file such as totals.py.")
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        parts.insert(0, root.name)
        root = root.parent
    if len(parts) > 1 and parts[-1] == "__init__":
        parts.pop()
    if any("." in part for part in parts):
        raise PipelineError(
            f"{where} cannot be imported, because its name has a dot in it; rename the file."
        )
    if parts[0] in sys.stdlib_module_names or parts[0] in NEEDED:
        what = "the file" if len(parts) == 1 else f"the package {parts[0]!r}"
        raise PipelineError(
            f"{where} would hide the module {parts[0]!r}, which a job needs; rename {what}."
        )
    return Reference(text=text, module=".".join(parts), class_name=class_name, root=root, file=file)


def _example(text: str) -> str:
    """Return a valid reference as an example; the intended one if the user left out `.py`."""
    path, _, class_name = text.partition(":")
    if "/" not in path or not class_name.isidentifier():
        return f"{EXAMPLE} or order_totals.py"
    return f"{path}{_SUFFIX}:{class_name}"
