"""The build of a submitted pipeline in another process, with a check that it is the same.

The JobMaster and the slots call `rebuild` before anything else. Within one attempt, all processes
must run the same graph from the same code. The code is from the submission's archive
(`archive.py`), so a different fingerprint means that `define` is not deterministic. A submission of
an older version has no archive, and its code is compared by a digest over the package. A restore
compares less (uids, key types, schemas), because the code may change from one submit to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tidegate.api.code.code import code_digest, load_pipeline
from tidegate.api.declarations.location import show_paths_below
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
    """Import the pipeline, build its graph, and return both.

    `digest` is None if the folder holds the files of the archive. PipelineError if the pipeline
    cannot be built, CodeMismatchError if it differs from the submitted one. UserCodeError if the
    user's code raised an exception here that it did not raise at submit.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python_version.split(".")[:2] != here.split("."):
        raise CodeMismatchError(
            f"{reference} was submitted with Python {python_version}, this process runs {here}: "
            "use one minor version on all machines of a job."
        )
    if digest is None:
        show_paths_below(Path(folder))
    with _user_code_errors(reference):
        pipeline = load_pipeline(reference, Path(folder))
    if digest is not None and code_digest(pipeline) != digest:
        raise CodeMismatchError(
            f"The code of {reference} in {folder} is not the code that was submitted: a file of "
            "its package was changed while the job ran, or differs on this machine. Stop the job "
            "and submit it again; it continues from its last checkpoint."
        )
    with _user_code_errors(reference):
        graph = build(pipeline, params)
    if graph.fingerprint() != fingerprint:
        raise CodeMismatchError(
            f"{reference} gave another graph here than at submit, from the same code: its define() "
            "depends on something outside it (the time, the environment, the order of a set). Make "
            "it depend on its parameters only."
        )
    return pipeline, graph


@contextmanager
def _user_code_errors(reference: str) -> Iterator[None]:
    """Turn an exception of the user's code into a UserCodeError, so that a restart retries.

    The same code worked at submit. A module, a constructor or a parameter's check may need a
    service that does not answer now. A missing module or a syntax error stays a PipelineError,
    because the next attempt would fail in the same way.
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
