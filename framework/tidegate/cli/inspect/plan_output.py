"""The plan of a pipeline and its problems, as text and as JSON: the output of `tidegate check`.

A vertex is what one subtask runs. The steps of a vertex pass records to each other by function
calls. Records go from one vertex to another through an exchange, by key or one to one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.api.connectors.kafka_connector import KafkaConnector
from tidegate.api.connectors.kafka_names import topic_of
from tidegate.api.connectors.sink import Sink
from tidegate.api.records.record_fields import type_name
from tidegate.api.steps.step_state import step_state
from tidegate.cli.inspect.broker_checks import Problem
from tidegate.commit.timeouts import required_transaction_timeout_ms
from tidegate.config import Config
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.plan import PhysicalPlan, plan
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.ids import JobName
from tidegate.message_text import counted


class StepSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a vertex."""

    id: str
    kind: str
    location: str
    topic: str = ""
    guarantee: str = ""
    key_type: str = ""
    states: dict[str, str] = {}
    """The kind of each state, by its name."""


class OutputSummary(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange from a vertex to another."""

    to: str
    partitioning: str


class VertexSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that one subtask runs, and its outputs."""

    id: str
    steps: tuple[StepSummary, ...]
    outputs: tuple[OutputSummary, ...]


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a job."""

    job: str
    parallelism: int
    max_parallelism: int
    checkpoint_interval_ms: int
    checkpoint_dir: str
    transaction_timeout_ms: int
    vertices: tuple[VertexSummary, ...]


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the command. Without a plan, the pipeline cannot be built."""

    reference: str
    plan: PlanSummary | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that prevent a run."""
        return tuple(each for each in self.problems if each.level == "error")


def plan_summary(job: JobName, graph: StreamGraph, config: Config) -> PlanSummary:
    """Return the plan of a graph."""
    laid_out = plan(graph, config.job.parallelism, config.job.max_parallelism)
    nodes = {node.id: node for node in graph}
    return PlanSummary(
        job=job,
        parallelism=laid_out.parallelism,
        max_parallelism=laid_out.max_parallelism,
        checkpoint_interval_ms=config.checkpoint.interval,
        checkpoint_dir=config.checkpoint.dir,
        transaction_timeout_ms=required_transaction_timeout_ms(config.checkpoint),
        vertices=tuple(
            VertexSummary(
                id=vertex.id,
                steps=tuple(_step(nodes[node], config) for node in vertex.nodes),
                outputs=_outputs(laid_out, vertex.id),
            )
            for vertex in laid_out.vertices
        ),
    )


def topics_of(result: CheckResult) -> list[str]:
    """Return the topics of all sources and sinks, each once."""
    vertices = () if result.plan is None else result.plan.vertices
    topics = (step.topic for vertex in vertices for step in vertex.steps if step.topic)
    return list(dict.fromkeys(topics))


def result_json(result: CheckResult) -> dict[str, Any]:
    """Return the result as a JSON object."""
    return {
        **msgspec.to_builtins(result),
        "topics": topics_of(result),
        "accepted": not result.errors,
    }


def result_text(result: CheckResult) -> str:
    """Return the result as lines of text: the plan, then the problems."""
    lines = [] if result.plan is None else _plan_lines(result.plan)
    for number, each in enumerate(result.problems, 1):
        lines.append(f"{number}. {each.level}, {each.about}: {each.text}")
    errors, warnings = len(result.errors), len(result.problems) - len(result.errors)
    if result.problems:
        lines.append(f"{counted(errors, 'error')}, {counted(warnings, 'warning')}.")
    else:
        lines.append("No problem was found.")
    return "\n".join(lines)


def _plan_lines(summary: PlanSummary) -> list[str]:
    lines = [f"{summary.job}: {_parallelism_text(summary)}", _checkpoint_text(summary)]
    for vertex in summary.vertices:
        lines.append(f"vertex {vertex.id}, {counted(summary.parallelism, 'subtask')}")
        lines += [f"    {step.id:<24} {_step_text(step)}".rstrip() for step in vertex.steps]
        for output in vertex.outputs:
            how = "by key" if output.partitioning == "key" else "one to one"
            lines.append(f"  -> {output.to}, {how}")
    return lines


def _parallelism_text(summary: PlanSummary) -> str:
    return f"parallelism {summary.parallelism}, max_parallelism {summary.max_parallelism}"


def _checkpoint_text(summary: PlanSummary) -> str:
    return (
        f"checkpoints every {summary.checkpoint_interval_ms / 1000:g} s to "
        f"{summary.checkpoint_dir}, transaction timeout "
        f"{summary.transaction_timeout_ms / 1000:g} s"
    )


def _step_text(step: StepSummary) -> str:
    states = ", ".join(f"{name} ({kind})" for name, kind in step.states.items())
    parts = [
        step.kind,
        f"topic {step.topic}" if step.topic else "",
        step.guarantee,
        f"keyed by {step.key_type}" if step.key_type else "",
        f"state {states}" if states else "",
    ]
    return ", ".join(part for part in parts if part)


def _step(node: Node, config: Config) -> StepSummary:
    sink = node.declaration
    keyed = operator_kind(node.kind).keyed
    return StepSummary(
        id=node.id,
        kind=node.kind,
        location=node.location,
        topic=topic_of(config, node) if isinstance(sink, KafkaConnector) else "",
        guarantee=sink.guarantee if isinstance(sink, Sink) else "",
        key_type=type_name(node.inputs[0].key_type) if keyed else "",
        states={name: state.kind for name, state in step_state(node).states.items()}
        if keyed
        else {},
    )


def _outputs(laid_out: PhysicalPlan, vertex: Any) -> tuple[OutputSummary, ...]:
    return tuple(
        OutputSummary(to=edge.target, partitioning=edge.partitioning)
        for edge in laid_out.outputs_of(vertex)
    )
