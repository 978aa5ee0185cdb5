"""Does the work of `tidegate check`: builds the pipeline and its plan, and collects problems.

The command starts nothing and writes nothing. The pipeline, the configuration and the brokers are
checked as far as each of them can be, so that one list has the problems of all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tidegate.api.pipeline import Pipeline, build
from tidegate.cli.inspect.broker_checks import Problem, broker_problems
from tidegate.cli.inspect.plan_output import CheckResult, plan_summary
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.client.preflight import (
    RunOptions,
    class_settings,
    load_for_submit,
    make_submission,
)
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import ExternalError, UserError


def check(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    params: dict[str, str],
    *,
    with_kafka: bool,
) -> CheckResult:
    """Return the plan of the pipeline, if it can be built, and all problems."""
    problems: list[Problem] = []
    pipeline = _load_class(reference, folder, problems)
    config = _load_config(folder, pipeline, command_line, problems)
    if pipeline is None or config is None:
        if pipeline is not None:
            _build(pipeline, params, problems)
        return CheckResult(reference=reference, problems=tuple(problems))
    try:
        options = RunOptions(params=params)
        submission, graph, _ = make_submission(reference, folder, pipeline, config, options)
    except (UserError, ExternalError) as error:
        problems.append(Problem(about=f"pipeline {reference}", text=str(error)))
        return CheckResult(reference=reference, problems=tuple(problems))
    if with_kafka:
        problems += broker_problems(graph, config, SystemDrivers())
    return CheckResult(
        reference=reference,
        plan=plan_summary(submission.job, graph, config),
        problems=tuple(problems),
    )


def _load_class(reference: str, folder: Path, problems: list[Problem]) -> type[Pipeline] | None:
    try:
        return load_for_submit(reference, folder)
    except UserError as error:
        problems.append(Problem(about=f"pipeline {reference}", text=str(error)))
        return None


def _load_config(
    folder: Path,
    pipeline: type[Pipeline] | None,
    command_line: dict[str, Any],
    problems: list[Problem],
) -> Config | None:
    try:
        return load(
            folder=folder,
            environment=dict(os.environ),
            class_statement={} if pipeline is None else class_settings(pipeline),
            command_line=command_line,
        )
    except UserError as error:
        problems.append(Problem(about="configuration", text=str(error)))
        return None


def _build(pipeline: type[Pipeline], params: dict[str, str], problems: list[Problem]) -> None:
    """Build the graph only to find its problems, because the configuration has some too."""
    try:
        build(pipeline, params)
    except UserError as error:
        problems.append(Problem(about=f"pipeline {pipeline.__name__}", text=str(error)))
