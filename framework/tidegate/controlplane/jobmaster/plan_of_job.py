"""What a JobMaster knows of its job before anything runs: graph, plan, and what a restore compares.

Built once from the submission, by importing the user's class: the reason why a JobMaster is a
process of its own.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Final, cast

from tidegate.api.evolution import mismatch
from tidegate.api.fields import name_of
from tidegate.api.functions import KeyedProcess
from tidegate.api.rebuild import rebuild
from tidegate.api.topics import topic_of
from tidegate.checkpoint.plan_facts import PlanFacts, SourceFacts, StepFacts
from tidegate.config import CheckpointSettings, Config
from tidegate.graph.logical import Graph, Node
from tidegate.graph.plan import PhysicalPlan, plan
from tidegate.ids import SubtaskId, SubtaskIndex, Uid
from tidegate.protocol.messages import Submission

PRODUCER_START_S: Final = 0.6
"""A new transactional producer takes 0.06 or 0.5 s to initialise (measured); with some air."""

SPARE_SLOTS_MAX: Final = 13
"""Per sink subtask, besides those of unfinished checkpoints, which nothing may cap: each is an id
that the broker remembers, and most are a producer with four threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job, laid out."""

    pipeline: str
    """The class's name, for messages."""
    config: Config
    graph: Graph
    plan: PhysicalPlan
    facts: PlanFacts
    subtasks: frozenset[SubtaskId]

    @property
    def kafka(self) -> dict[str, str]:
        """Librdkafka settings of the job's cluster."""
        kafka = self.config.kafka
        return {"bootstrap.servers": kafka.bootstrap, **kafka.properties}


def plan_job(submission: Submission) -> JobPlan:
    """Build the job; PipelineError or CodeMismatchError if it is not what was submitted."""
    config = Config.from_dict(submission.settings)
    pipeline, graph = rebuild(
        submission.reference,
        submission.working_folder,
        submission.params,
        fingerprint=submission.fingerprint,
        digest=submission.code_digest,
        python_version=submission.python_version,
    )
    laid_out = plan(graph, submission.parallelism, submission.max_parallelism)
    return JobPlan(
        pipeline=pipeline.__name__,
        config=config,
        graph=graph,
        plan=laid_out,
        facts=plan_facts(graph, laid_out, config),
        subtasks=frozenset(
            SubtaskId(vertex.id, SubtaskIndex(index))
            for vertex in laid_out.vertices
            for index in range(vertex.parallelism)
        ),
    )


def plan_facts(graph: Graph, laid_out: PhysicalPlan, config: Config) -> PlanFacts:
    """What ties state to code: uids, key types, schemas, sources."""
    return PlanFacts(
        parallelism=laid_out.parallelism,
        max_parallelism=laid_out.max_parallelism,
        steps=tuple(_step(node) for node in graph if node.kind == "keyed_process"),
        sources=tuple(
            SourceFacts(uid=Uid(node.id), topic=topic_of(config, node))
            for node in graph
            if node.kind == "source"
        ),
    )


def state_conflict(old: str, new: str) -> str | None:
    """Why a state that was written as `old` cannot be read as `new`, both as in
    `StepFacts.states`.
    """
    written, wanted = json.loads(old), json.loads(new)
    if written["kind"] != wanted["kind"]:
        return f"it was a {written['kind']} state and is a {wanted['kind']} state now"
    for before, after in zip(written["schemas"], wanted["schemas"], strict=True):
        why_not = mismatch(before, after)
        if why_not is not None:
            return why_not
    return None


def warm_producers(settings: CheckpointSettings) -> int:
    """Producers that a sink subtask keeps initialised: as many as intervals pass while one
    starts.
    """
    return math.ceil(PRODUCER_START_S / (settings.interval / 1000)) + 1


def transaction_slots(settings: CheckpointSettings) -> int:
    """Transactional ids of a sink subtask: checkpoints that may be unfinished at once (the pending
    one and those that may fail in a row), the warm ones, the current one and one being freed.
    """
    unfinished = 1 + settings.tolerable_failures
    return unfinished + min(warm_producers(settings) + 2, SPARE_SLOTS_MAX)


def _step(node: Node) -> StepFacts:
    function = cast("KeyedProcess[Any, Any, Any]", node.function)
    return StepFacts(
        uid=Uid(node.id),
        key_type=name_of(node.inputs[0].key_type),
        states={
            name: json.dumps(state.describe(), sort_keys=True)
            for name, state in type(function).declared_states.items()
        },
    )
