"""Import of a pipeline class by its reference, and the digest of its code.

A reference is a text such as `pipelines.order_totals:OrderTotals` (`references.py`). Every process
of a job imports the class by the stored reference, with the folder of the job's code first on the
path. Submissions of older versions have no code archive: for them, each process compares the
digest with the submitted one. A changed helper module matters as much as a changed lambda. So the
digest covers the files of the pipeline's top-level package as they are on disk, and not only the
modules that this process has imported.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from tidegate.api.code.references import Reference, read_reference
from tidegate.api.pipeline import Pipeline
from tidegate.errors import PipelineError, passes_through
from tidegate.message_text import clause
from tidegate.user_exceptions import described, text_of


def load_pipeline(reference: str, folder: Path) -> type[Pipeline]:
    """Import a pipeline class, with its folder first on the path.

    The reference names a module below `folder`, or a file (`references.py`). PipelineError, with
    the remedy, if the reference is malformed, or if the module does not exist or its import fails.
    PipelineError also if the name is not a pipeline class that can run, or if there is no name and
    the module does not declare exactly one pipeline.
    """
    return load(read_reference(reference, folder))


def load(wanted: Reference) -> type[Pipeline]:
    """Import the class of a reference; `load_pipeline` says what is refused."""
    folder = str(wanted.root)
    if folder in sys.path:
        sys.path.remove(folder)
    sys.path.insert(0, folder)
    module = _imported(wanted)
    if not wanted.class_name:
        return _only_pipeline(wanted, module)
    found = getattr(module, wanted.class_name, None)
    if isinstance(found, type) and issubclass(found, Pipeline) and found.pipeline_name is not None:
        return found
    names = [each.__name__ for each in _declared(module)]
    offered = f"It has: {', '.join(sorted(names))}." if names else "It has none."
    raise PipelineError(
        f"Module {wanted.shown!r} has no pipeline class {wanted.class_name!r}. {offered}"
    )


def stored_reference(reference: str, folder: Path, pipeline: type[Pipeline]) -> str:
    """Return the reference under which every process of a job finds the class: MODULE:CLASS.

    The code folder of a process has other paths than the user's folder, and the same modules.
    """
    wanted = read_reference(reference, folder)
    return f"{wanted.module}:{wanted.class_name or pipeline.__name__}"


def is_loading() -> bool:
    """Return whether this process imports the module of a pipeline now.

    A module that runs a pipeline when it is imported would run it in every process of the job.
    """
    return bool(_loading)


@contextmanager
def loading(module: str) -> Iterator[None]:
    """Mark the time in which the module of a pipeline is imported, for `is_loading`."""
    _loading.append(module)
    try:
        yield
    finally:
        _loading.pop()


_loading: list[str] = []
"""The modules of pipelines whose import has begun and not ended."""


def _imported(wanted: Reference) -> ModuleType:
    try:
        with loading(wanted.module):
            module = importlib.import_module(wanted.module)
    except passes_through():
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{wanted.module}.".startswith(f"{missing}."):
            parent, _, name = missing.rpartition(".")
            if hasattr(sys.modules.get(parent), name):
                raise PipelineError(
                    f"{missing!r} is not a module: {name} is declared in the module {parent!r}; "
                    f"separate them by a colon, as in {parent}:{name}."
                ) from None
            raise PipelineError(
                f"There is no module {missing!r} in {wanted.root} or on the path; run the command "
                "in the folder that holds your pipelines, or name the file, as in totals.py."
            ) from None
        raise PipelineError(
            f"Importing {wanted.module} failed at {_location(error)}: "
            f"{clause(described(error))}{_remedy(error) or '.'}"
        ) from error
    origin = getattr(module, "__file__", None)
    if wanted.file is None or (origin is not None and wanted.file.samefile(origin)):
        return module
    raise PipelineError(
        f"{wanted.file} cannot be imported, because this process has another module "
        f"{wanted.module!r}, from {origin}; rename the file."
    )


def _only_pipeline(wanted: Reference, module: ModuleType) -> type[Pipeline]:
    found = _declared(module)
    if len(found) == 1:
        return found[0]
    if not found:
        raise PipelineError(
            f"{wanted.shown} declares no pipeline; add one: class Totals(Pipeline, name='totals')."
        )
    names = sorted(each.__name__ for each in found)
    raise PipelineError(
        f"{wanted.shown} has several pipelines: {', '.join(names)}; name one of them, as in "
        f"{wanted.shown}:{names[0]}."
    )


def _declared(module: ModuleType) -> list[type[Pipeline]]:
    """Return the pipelines that can run and that the module declares itself, each once."""
    found = {
        value: None
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Pipeline)
        and value.pipeline_name is not None
        and value.__module__ == module.__name__
    }
    return list(found)


def _remedy(error: BaseException) -> str:
    """Return the remedy for a mistake in a declaration that Python itself reports."""
    if not isinstance(error, TypeError):
        return ""
    said = text_of(error)
    for end, remedy in _REMEDIES.items():
        if said.endswith(end):
            return remedy
    return ""


_REMEDIES = {
    "argument: 'value'": ". A topic needs the format of its values, as in value=Json(Order).",
    "argument: 'of'": ". Give it the type, as in ValueState(int, default=0).",
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


def _location(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{Path(error.filename).name}:{error.lineno}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
