"""The plan of a job before anything runs: the graph, its layout, and the metadata for a restore.

It is built once from the submission. This imports the user's class, which is why each JobMaster is
a process of its own.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.api.code.archive import code_cache_folder, install
from tidegate.api.code.rebuild import rebuild
from tidegate.api.connectors.kafka_names import topic_of
from tidegate.api.connectors.sink import Sink
from tidegate.api.records.record_fields import type_name
from tidegate.api.state.stored import key_text, state_text
from tidegate.api.steps.step_state import step_state
from tidegate.api.time.timers import for_keys
from tidegate.api.windows.window_step import has_calendar_windows
from tidegate.api.windows.windows import TZ_DATABASE
from tidegate.checkpoint.state_metadata import SourceMetadata, StateMetadata, StepMetadata
from tidegate.config import CheckpointSettings, Config
from tidegate.errors import TidegateError, from_foreign
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.plan import PhysicalPlan, plan
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.ids import SubtaskId, SubtaskIndex, Uid
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.submission import Submission

PRODUCER_START_S: Final = 0.6
"""The time in seconds to initialise a new transactional producer, with some margin. Measured values
are 0.06 and 0.5 s."""

SPARE_IDS_MAX: Final = 13
"""The most transactional ids per sink subtask, in addition to those of unfinished checkpoints. The
number of the latter must not be limited. The broker remembers each id, and most ids have a producer
with four threads."""


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The graph of a job and its layout for the parallelism of the submission."""

    pipeline: str
    """The name of the pipeline class, for messages."""
    graph: StreamGraph
    plan: PhysicalPlan
    state_metadata: StateMetadata
    subtasks: frozenset[SubtaskId]


def plan_job(submission: Submission, config: Config, code: Path | None = None) -> JobPlan:
    """Build the plan of the job. PipelineError or CodeMismatchError if the code is not what was
    submitted, UserCodeError if the user's code raised.

    `code` is the folder with the code of the job. Without it, the code is read from the working
    folder.
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
        state_metadata=state_metadata(graph, laid_out, config),
        subtasks=frozenset(
            SubtaskId(vertex.id, SubtaskIndex(index))
            for vertex in laid_out.vertices
            for index in range(vertex.parallelism)
        ),
    )


def opens_transactions(graph: StreamGraph) -> bool:
    """Return whether a sink of the job writes transactions, in Kafka or in another system."""
    return any(
        isinstance(node.declaration, Sink) and node.declaration.guarantee == "exactly_once"
        for node in graph
    )


def try_plan(submission: Submission, config: Config, code: Path | None) -> JobPlan | TidegateError:
    """Return the plan of a job, built from the folder of its code, or the error that prevents
    it.
    """
    try:
        return plan_job(submission, config, code)
    except Exception as error:  # noqa: BLE001 - whatever it is, the journal is settled
        _log.warning("the job cannot be planned", exc_info=True)
        return from_foreign(error)


def installed_code(submission: Submission, config: Config, storage: BlobStore) -> Path | None:
    """Return the folder of the submission's code on this host. None for a submission without an
    archive.

    StorageError if the storage does not answer or the folder cannot be written. `storage` is bound
    to the storage of the job, so an archive is missing only if that storage does not have it.
    """
    if submission.code is None:
        return None
    return install(
        storage,
        submission.code.path,
        submission.code.digest,
        submission.code.size,
        code_cache_folder(submission.working_folder, config.state.local_dir, submission.job),
    )


def state_metadata(graph: StreamGraph, laid_out: PhysicalPlan, config: Config) -> StateMetadata:
    """Return the metadata that ties state to code: uids, key types, schemas, sources."""
    return StateMetadata(
        parallelism=laid_out.parallelism,
        max_parallelism=laid_out.max_parallelism,
        steps=tuple(_step(node) for node in graph if operator_kind(node.kind).keyed),
        sources=tuple(
            SourceMetadata(uid=Uid(node.id), topic=topic_of(config, node))
            for node in graph
            if node.kind == "source"
        ),
        tz_database=TZ_DATABASE if any(map(has_calendar_windows, graph)) else "",
    )


def producer_pool_size(settings: CheckpointSettings) -> int:
    """Return the number of producers that a sink subtask keeps initialised: the number of
    checkpoint intervals that pass while a producer starts, rounded up, plus one.
    """
    return math.ceil(PRODUCER_START_S / (settings.interval / 1000)) + 1


def transactional_ids_per_subtask(settings: CheckpointSettings) -> int:
    """Return the number of transactional ids of a sink subtask. It needs one for each checkpoint
    that may be unfinished at the same time: the pending one, and those that may fail in a row. In
    addition, it needs the ids of initialised producers, the current one, and one that is being
    freed: at most `SPARE_IDS_MAX`.
    """
    unfinished = 1 + settings.tolerable_failed_checkpoints
    return unfinished + min(producer_pool_size(settings) + 2, SPARE_IDS_MAX)


def _step(node: Node) -> StepMetadata:
    declared = step_state(node)
    states = for_keys(declared.states, declared.key_type)
    return StepMetadata(
        uid=Uid(node.id),
        key_type=type_name(node.inputs[0].key_type),
        states={name: state_text(state) for name, state in states.items()},
        key_schema=key_text(declared.key_type),
        renamed_from={n: state.renamed_from for n, state in states.items() if state.renamed_from},
        dropped_states=declared.dropped,
        fixed=dict(declared.fixed),
    )
