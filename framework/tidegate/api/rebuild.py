"""A submitted pipeline, built anew in another process and compared with what was submitted.

JobMaster and slots call it before anything else. Within one attempt all processes must run the same
graph from the same code. The code is that of the submission's archive (`archive.py`), so a
fingerprint that differs is a `define` that is not deterministic. A submission of an older version
has no archive: its code is compared by a digest over the package. A restore compares less (uids,
key types, schemas), because there code is meant to change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidegate.api.code import code_digest, load_pipeline
from tidegate.api.location import shown_below
from tidegate.api.pipeline import Pipeline, build
from tidegate.errors import CodeMismatchError, PipelineError, UserCodeError
from tidegate.graph.stream_graph import StreamGraph


def rebuild(
    reference: str,
    folder: str,
    params: Mapping[str, object],
    *,
    fingerprint: str,
    digest: str | None,
    python_version: str,
) -> tuple[type[Pipeline], StreamGraph]:
    """The class and its graph; PipelineError if it cannot be built, CodeMismatchError if it
    differs, UserCodeError if the user's code raised here what it did not raise at submit. `digest`
    is None where the folder holds the files of the archive.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python_version.split(".")[:2] != here.split("."):
        raise CodeMismatchError(
            f"{reference} was submitted with Python {python_version}, this process runs {here}: "
            "use one minor version on all machines of a job."
        )
    if digest is None:
        shown_below(Path(folder))
    with _raised_by_the_user(reference):
        pipeline = load_pipeline(reference, Path(folder))
    if digest is not None and code_digest(pipeline) != digest:
        raise CodeMismatchError(
            f"The code of {reference} in {folder} is not the code that was submitted: a file of "
            "its package was changed while the job ran, or differs on this machine. Stop the job "
            "and submit it again; it continues from its last checkpoint."
        )
    with _raised_by_the_user(reference):
        graph = build(pipeline, params)
    if graph.fingerprint() != fingerprint:
        raise CodeMismatchError(
            f"{reference} gave another graph here than at submit, from the same code: its define() "
            "depends on something outside it (the time, the environment, the order of a set). Make "
            "it depend on its parameters only."
        )
    return pipeline, graph


@contextmanager
def _raised_by_the_user(reference: str) -> Iterator[None]:
    """Let a restart try again what the user's code raised: the same code worked at submit.

    A module, a constructor or a parameter's check may need a service that does not answer just
    now. A module that is not there, or is no Python, will not be there for the next attempt.
    """
    try:
        yield
    except PipelineError as error:
        raised = error.__cause__
        if not isinstance(raised, Exception) or isinstance(raised, ImportError | SyntaxError):
            raise
        raise UserCodeError(
            f"The code of {reference} raised on this host what it did not raise at submit: {error}"
        ) from raised
