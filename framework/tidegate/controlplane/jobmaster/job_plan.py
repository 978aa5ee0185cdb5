"""What a JobMaster knows of its job before anything runs: graph, plan, and what a restore compares.

Built once from the submission, by importing the user's class: the reason why a JobMaster is a
process of its own.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from tidegate.api.archive import cache_of, install
from tidegate.api.functions import KeyedProcess
from tidegate.api.kafka_names import topic_of
from tidegate.api.rebuild import rebuild
from tidegate.api.record_fields import type_name
from tidegate.api.stored import key_text, state_text
from tidegate.checkpoint.state_metadata import SourceMetadata, StateMetadata, StepMetadata
from tidegate.config import CheckpointSettings, Config
from tidegate.errors import TidegateError, from_foreign
from tidegate.graph.plan import PhysicalPlan, plan
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.ids import SubtaskId, SubtaskIndex, Uid
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.messages import Submission

PRODUCER_START_S: Final = 0.6
"""A new transactional producer takes 0.06 or 0.5 s to initialise (measured); with some air."""

SPARE_SLOTS_MAX: Final = 13
"""Per sink subtask, besides those of unfinished checkpoints, which nothing may cap: each is an id
that the broker remembers, and most are a producer with four threads."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job, laid out."""

    pipeline: str
    """The class's name, for messages."""
    graph: StreamGraph
    plan: PhysicalPlan
    facts: StateMetadata
    subtasks: frozenset[SubtaskId]


def kafka_of(config: Config) -> dict[str, str]:
    """Librdkafka settings of the job's cluster."""
    return {"bootstrap.servers": config.kafka.bootstrap, **config.kafka.properties}


def plan_job(submission: Submission, config: Config, code: Path | None = None) -> JobPlan:
    """Build the job; PipelineError or CodeMismatchError if it is not what was submitted,
    UserCodeError if the user's code raised.

    `code` is the folder of its files; without it they are those of the working folder.
    """
    pipeline, graph = rebuild(
        submission.reference,
        submission.working_folder if code is None else str(code),
        submission.params,
        fingerprint=submission.fingerprint,
        digest=submission.code_digest if code is None else None,
        python_version=submission.python_version,
    )
    laid_out = plan(graph, submission.parallelism, submission.max_parallelism)
    return JobPlan(
        pipeline=pipeline.__name__,
        graph=graph,
        plan=laid_out,
        facts=plan_facts(graph, laid_out, config),
        subtasks=frozenset(
            SubtaskId(vertex.id, SubtaskIndex(index))
            for vertex in laid_out.vertices
            for index in range(vertex.parallelism)
        ),
    )


def try_plan(submission: Submission, config: Config, code: Path | None) -> JobPlan | TidegateError:
    """The plan of a job from the folder of its code, or why there is none."""
    try:
        return plan_job(submission, config, code)
    except Exception as error:  # noqa: BLE001 - whatever it is, the journal is settled
        _log.warning("the job cannot be planned", exc_info=True)
        return from_foreign(error)


def installed_code(submission: Submission, config: Config, storage: BlobStore) -> Path | None:
    """The folder of the submission's code on this host; None for a submission without an archive.

    StorageError if the storage does not answer or the folder cannot be written. `storage` is bound
    to the storage of the job: an archive is missing only if that storage does not have it.
    """
    if submission.code is None:
        return None
    return install(
        storage,
        submission.code.path,
        submission.code.digest,
        submission.code.size,
        cache_of(submission.working_folder, config.state.directory, submission.job),
    )


def plan_facts(graph: StreamGraph, laid_out: PhysicalPlan, config: Config) -> StateMetadata:
    """What ties state to code: uids, key types, schemas, sources."""
    return StateMetadata(
        parallelism=laid_out.parallelism,
        max_parallelism=laid_out.max_parallelism,
        steps=tuple(_step(node) for node in graph if node.kind == "keyed_process"),
        sources=tuple(
            SourceMetadata(uid=Uid(node.id), topic=topic_of(config, node))
            for node in graph
            if node.kind == "source"
        ),
    )


def warm_producers(settings: CheckpointSettings) -> int:
    """Producers that a sink subtask keeps initialised: as many as intervals pass while one
    starts.
    """
    return math.ceil(PRODUCER_START_S / (settings.interval / 1000)) + 1


def transaction_slots(settings: CheckpointSettings) -> int:
    """Transactional ids of a sink subtask: checkpoints that may be unfinished at once (the pending
    one and those that may fail in a row), the warm ones, the current one and one being freed.
    """
    unfinished = 1 + settings.tolerable_failed_checkpoints
    return unfinished + min(warm_producers(settings) + 2, SPARE_SLOTS_MAX)


def _step(node: Node) -> StepMetadata:
    function = type(cast("KeyedProcess[Any, Any, Any]", node.function))
    states = function.declared_states
    return StepMetadata(
        uid=Uid(node.id),
        key_type=type_name(node.inputs[0].key_type),
        states={name: state_text(state) for name, state in states.items()},
        key_schema=key_text(node.inputs[0].key_type),
        renamed_from={n: state.renamed_from for n, state in states.items() if state.renamed_from},
        dropped_states=function.dropped_states,
    )
