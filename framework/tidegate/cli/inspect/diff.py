"""Does the work of `tidegate diff`: reads the job's checkpoint and compares it with the code.

The command writes nothing. The refusals come from the functions that a restore calls, so the
verdict is the one of a run. The positions in Kafka are compared only on request, because the
command otherwise needs no broker.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegate.api.pipeline import build
from tidegate.api.state.evolution import same_key_type, state_conflict
from tidegate.checkpoint.manifest import Manifest, manifest_folder
from tidegate.checkpoint.partition_offsets import PartitionOffsets
from tidegate.checkpoint.restore import refusals, restore
from tidegate.checkpoint.source_changes import deleted_topic_error
from tidegate.checkpoint.state_changes import SchemaRules
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.cli.inspect.code_changes import code_changes
from tidegate.cli.inspect.diff_output import Comparison, Loss
from tidegate.commit.journal.claimed import restore_point
from tidegate.commit.journal.reading import read_journal
from tidegate.commit.journal.state import JournalState, PublicationRef
from tidegate.commit.publish import load_manifest
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.client.preflight import (
    check_restore,
    class_settings,
    job_name,
    load_for_submit,
)
from tidegate.controlplane.journal.effect_runner import run_read_only
from tidegate.controlplane.journal.job_plan import state_metadata
from tidegate.controlplane.journal.split_enumeration import enumerate_partitions, source_topics
from tidegate.drivers.system import SystemDrivers
from tidegate.errors import RefusedError, SourceChangedError
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import JobName
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import TransactionAdmin
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.storage_location import locate
from tidegate.stream_elements import TopicPartition

RULES = SchemaRules(conflict=state_conflict, same_keys=same_key_type)


def compare(
    reference: str,
    folder: Path,
    command_line: dict[str, Any],
    params: dict[str, str],
    restore_from: str,
    *,
    with_kafka: bool,
) -> Comparison:
    """Return the comparison of the code with the checkpoint that a run would restore.

    ConfigError if `restore_from` is not the id of a checkpoint, and RefusedError if the job has
    none of that id.
    """
    check_restore(restore_from)
    pipeline = load_for_submit(reference, folder)
    config = load(
        folder=folder,
        environment=dict(os.environ),
        class_statement=class_settings(pipeline),
        command_line=command_line,
    )
    graph = build(pipeline, params)
    laid_out = plan(graph, config.job.parallelism, config.job.max_parallelism)
    metadata = state_metadata(graph, laid_out, config)
    job = job_name(graph, config)
    drivers = SystemDrivers()
    store = drivers.blob_store(locate(config.checkpoint.dir, folder))
    state = run_read_only(store, read_journal(job))
    point = _restore_point(job, state, store, restore_from, config.checkpoint.dir)
    lost = None if state.lost is None else Loss(state.lost.statement, accepted=state.accepted)
    if point is None:
        return Comparison(
            job=job,
            reference=reference,
            storage=config.checkpoint.dir,
            without_state=restore_from == "none",
            lost=lost,
        )
    manifest = run_read_only(store, load_manifest(point))
    reasons = [str(each) for each in refusals(manifest, metadata, schemas=RULES)]
    if with_kafka and not reasons:
        reasons = _position_refusals(manifest, metadata, graph, config, job, drivers)
    return Comparison(
        job=job,
        reference=reference,
        storage=config.checkpoint.dir,
        checkpoint=str(manifest.checkpoint),
        taken_ms=manifest.created_ms,
        same=manifest.fingerprint == graph.fingerprint(),
        changes=code_changes(manifest, metadata, graph.describe(), RULES),
        refusals=tuple(reasons),
        lost=lost,
    )


def _restore_point(
    job: JobName, state: JournalState, store: BlobStore, restore_from: str, storage: str
) -> PublicationRef | None:
    """Return the publication to compare with. None if a run would start without state.

    The journal also lists checkpoints that have expired, so an id is looked up in the storage.
    """
    if restore_from in {"latest", "none"}:
        return restore_point(state, "", restore_from)
    there = set(store.list(manifest_folder(job)))
    kept = {str(ref.checkpoint): ref for ref in state.recent_checkpoints if ref.manifest in there}
    if restore_from in kept:
        return kept[restore_from]
    remedy = (
        f"It has {', '.join(kept)}: give one of these, or latest."
        if kept
        else "It has none: tidegate run takes the first one."
    )
    raise RefusedError(
        f"Job {job!r} has no checkpoint {restore_from!r} in the checkpoint storage {storage!r}. "
        f"{remedy}"
    )


def _position_refusals(
    manifest: Manifest,
    metadata: StateMetadata,
    graph: StreamGraph,
    config: Config,
    job: JobName,
    drivers: Drivers,
) -> list[str]:
    """Return why the sources cannot continue at the positions of the checkpoint: a topic was
    deleted or created again, or Kafka does not have the next records any more.
    """
    kafka = config.kafka.client_settings()
    admin, transactions = drivers.kafka_admin(kafka), drivers.transaction_admin(kafka)
    try:
        ids = transactions.topic_ids(source_topics(graph, config))
        absent = [split for split in manifest.splits if split.topic not in ids]
        if absent:
            by_topic = {split.topic: split for split in absent}
            return [str(deleted_topic_error(split)) for split in by_topic.values()]
        partitions = enumerate_partitions(graph, config, job, admin, ids, bounded=False)
        ended = _with_epoch_ends(partitions, manifest.splits, transactions)
        restore(manifest, metadata, ended, schemas=RULES)
    except (RefusedError, SourceChangedError) as error:
        return [str(error)]
    finally:
        transactions.close()
        admin.close()
    return []


def _with_epoch_ends(
    partitions: Sequence[PartitionOffsets],
    stored: Sequence[SourceSplit],
    transactions: TransactionAdmin,
) -> list[PartitionOffsets]:
    """Return the partitions with the ends of the leader epochs of the stored positions."""
    ends: dict[tuple[str, TopicPartition], int] = {}
    for source in sorted({split.source for split in stored}):
        epochs = {
            split.topic_partition: split.leader_epoch
            for split in stored
            if split.source == source and split.leader_epoch >= 0
        }
        if epochs:
            found = transactions.epoch_end_offsets(epochs)
            ends |= {(source, topic_partition): end for topic_partition, end in found.items()}
    return [
        replace(each, epoch_end=ends.get((each.source, each.topic_partition)))
        for each in partitions
    ]
