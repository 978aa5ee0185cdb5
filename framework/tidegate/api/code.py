"""Import of a pipeline class by its reference, and the digest of its code.

A reference is a text such as `pipelines.order_totals:OrderTotals`. Every process of a job imports
the class by its reference, with the folder of the job's code first
on the path. Submissions of older versions have no code archive: for them, each process compares the
digest with the submitted one. A changed helper module matters as much as a changed lambda. So the
digest covers the files of the pipeline's top-level package as they are on disk, and not only the
modules that this process has imported.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path

from tidegate.api.pipeline import Pipeline
from tidegate.errors import PipelineError, TidegateError


def load_pipeline(reference: str, folder: Path) -> type[Pipeline]:
    """Import a pipeline class, with `folder` first on the path.

    PipelineError, with the remedy, if the reference is malformed, or if the module does not exist
    or its import fails. PipelineError also if the name is not a pipeline class that can run.
    """
    module_name, colon, class_name = reference.partition(":")
    dotted = all(part.isidentifier() for part in module_name.split("."))
    if not (colon and dotted and class_name.isidentifier()):
        raise PipelineError(f"{reference!r} is not MODULE:CLASS; write, say, {_example(reference)}")
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except TidegateError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise PipelineError(
                f"there is no module {missing!r} in {folder} or on the path; run the command in "
                "the folder that holds your pipelines"
            ) from None
        raise PipelineError(
            f"importing {module_name} failed at {_location(error)}: {type(error).__name__}: {error}"
            f"{_remedy(error)}"
        ) from error
    found = getattr(module, class_name, None)
    if isinstance(found, type) and issubclass(found, Pipeline) and found.pipeline_name is not None:
        return found
    names = [
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, Pipeline)
        and value.pipeline_name is not None
        and value.__module__ == module_name
    ]
    offered = f"it has {', '.join(sorted(names))}" if names else "it has none"
    raise PipelineError(f"{module_name} has no pipeline {class_name!r}; {offered}")


def _example(reference: str) -> str:
    """Return a valid reference as an example; the intended one if the user named a file."""
    path, _, class_name = reference.partition(":")
    if "/" not in path or not class_name.isidentifier():
        return "pipelines.order_totals:OrderTotals"
    return f"{path.removesuffix('.py').strip('./').replace('/', '.')}:{class_name}"


def _remedy(error: Exception) -> str:
    """Return the remedy for a mistake in a declaration that Python itself reports."""
    if not isinstance(error, TypeError):
        return ""
    said = str(error)
    for end, remedy in _REMEDIES.items():
        if said.endswith(end):
            return remedy
    unknown = re.search(r"__init_subclass__\(\) got an unexpected keyword argument '(\w+)'", said)
    if unknown is None:
        return ""
    near = difflib.get_close_matches(unknown[1], _CLASS_KEYWORDS, n=1)
    hint = f"Did you mean {near[0]}=? " if near else ""
    return f". {hint}A pipeline class takes {', '.join(f'{each}=' for each in _CLASS_KEYWORDS)}"


_CLASS_KEYWORDS = ("name", "parallelism", "max_parallelism", "checkpoint_interval")
_REMEDIES = {
    "argument: 'name'": (
        '. A pipeline is declared with its name: class Totals(Pipeline, name="totals")'
    ),
    "argument: 'value'": ". A topic needs the format of its values, as in value=Json(Order)",
    "argument: 'of'": ". Give it the type, as in ValueState(int, default=0)",
}
"""The remedy by the end of Python's message."""


def code_digest(pipeline: type[Pipeline]) -> str:
    """Return the SHA-256, in hex, of the Python files of the package that holds the pipeline.

    For a pipeline in a single module, it covers that file alone.
    """
    top = sys.modules[pipeline.__module__.partition(".")[0]]
    roots: Iterable[str] = getattr(top, "__path__", ())
    digest = hashlib.sha256()
    for root in roots:
        for file in sorted(Path(root).rglob("*.py")):
            digest.update(_entry(file.relative_to(root).as_posix(), file))
    alone = getattr(top, "__file__", None)
    if not roots and alone is not None:
        digest.update(_entry(Path(alone).name, Path(alone)))
    return digest.hexdigest()


def _entry(name: str, file: Path) -> bytes:
    content = file.read_bytes()
    return f"{name}\0{len(content)}\0".encode() + content


def _location(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
