"""A submitted pipeline, built anew in another process and compared with what was submitted.

JobMaster and slots call it before anything else. Within one attempt all processes must run the same
graph from the same code: a fingerprint that differs is a `define` that is not deterministic or a
class that was edited, a digest that differs is other code in the package. A restore compares less
(uids, key types, schemas), because there code is meant to change.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from tidegate.api.code import code_digest, load_pipeline
from tidegate.api.pipeline import Pipeline, build
from tidegate.errors import CodeMismatchError
from tidegate.graph.logical import Graph


def rebuild(
    reference: str,
    folder: str,
    params: Mapping[str, object],
    *,
    fingerprint: str,
    digest: str,
    python_version: str,
) -> tuple[type[Pipeline], Graph]:
    """The class and its graph; PipelineError if it cannot be built, CodeMismatchError if it
    differs.
    """
    if platform.python_version() != python_version:
        raise CodeMismatchError(
            f"{reference} was submitted with Python {python_version}, this process runs "
            f"{platform.python_version()}: use one version on all machines of a job."
        )
    pipeline = load_pipeline(reference, Path(folder))
    if code_digest(pipeline) != digest:
        raise CodeMismatchError(
            f"The code of {reference} in {folder} is not the code that was submitted: a file of "
            "its package was changed while the job ran, or differs on this machine. Stop the job "
            "and submit it again; it continues from its last checkpoint."
        )
    graph = build(pipeline, params)
    if graph.fingerprint() != fingerprint:
        raise CodeMismatchError(
            f"{reference} gave another graph here than at submit, from the same code: its define() "
            "depends on something outside it (the time, the environment, the order of a set). Make "
            "it depend on its parameters only."
        )
    return pipeline, graph
