"""The checks before a submit: build the job here, and check that storage and brokers can run it.

Every error that can be found now is reported now, in the user's terminal, before any process does
work. Examples are mistakes in the class, unknown settings, a storage that cannot hold a journal,
missing topics, and a transaction timeout above the limit of the brokers. The cluster makes the
remaining checks itself.
"""

from __future__ import annotations

import difflib
import platform
import secrets
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.api.code.archive import CodeArchive, pack
from tidegate.api.code.code import load_pipeline, stored_reference
from tidegate.api.code.references import read_reference
from tidegate.api.connectors.kafka_names import kafka_nodes, topic_of
from tidegate.api.connectors.sink import Sink
from tidegate.api.declarations.declaration_checks import RESERVED_PROPERTIES, check_topic
from tidegate.api.pipeline import Pipeline, build
from tidegate.api.records.formats import Avro
from tidegate.commit.timeouts import check_against_broker
from tidegate.commit.transactional_ids import job_prefix
from tidegate.config import Config
from tidegate.errors import ConfigError, ExternalError, RefusedError, TopicAbsentError
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import DEAD_LETTERS, KEY_DEAD_LETTERS, Node, StreamGraph
from tidegate.ids import KAFKA, CheckpointId, JobName, TransactionalId
from tidegate.message_text import counted
from tidegate.ports.drivers import Drivers, KafkaAdmin
from tidegate.ports.kafka import EndTxnResult
from tidegate.private_files import make_private_folder
from tidegate.protocol.submission import StoredCode, Submission
from tidegate.protocol.versions import TIDEGATE
from tidegate.storage_location import is_url, locate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a submit that are not part of the configuration."""

    params: Mapping[str, str]
    bounded: bool = False
    drain: bool | None = None
    """Whether all timers and windows fire at the end of a bounded input. They do if it is None: the
    user has not chosen.
    """
    restore: str = "latest"
    accept_data_loss: bool = False
    take_over: bool = False
    restore_to_other_cluster: bool = False


def class_settings(pipeline: type[Pipeline]) -> dict[str, Any]:
    """Return the settings of the class statement as dotted keys.

    They are the lowest layer of the configuration above the defaults.
    """
    said = pipeline.settings
    settings = {
        "job.parallelism": said.parallelism,
        "job.max_parallelism": said.max_parallelism,
        "checkpoint.interval": said.checkpoint_interval_ms,
    }
    return {key: value for key, value in settings.items() if value is not None}


def load_for_submit(reference: str, folder: Path) -> type[Pipeline]:
    """Import the pipeline class. Raise PipelineError if that fails."""
    return load_pipeline(reference, folder)


def make_submission(
    reference: str,
    folder: Path,
    pipeline: type[Pipeline],
    config: Config,
    options: RunOptions,
) -> tuple[Submission, StreamGraph, CodeArchive]:
    """Build the graph, describe the job in a submission and pack its code.

    Raise PipelineError or ConfigError for mistakes in the pipeline or the settings.
    """
    check_restore(options.restore)
    if options.drain is not None and not options.bounded:
        raise ConfigError(
            "--drain and --no-drain (in a script drain=) say how a bounded run ends, and this run "
            "has no end. Add --bounded (bounded=True), or end it by tidegate stop JOB --drain."
        )
    graph = build(pipeline, options.params)
    plan(graph, config.job.parallelism, config.job.max_parallelism)
    _check_overrides(graph, config)
    ours = (config.checkpoint.dir, config.state.local_dir, config.logs.dir)
    archive = pack(
        pipeline,
        folder,
        root=read_reference(reference, folder).root,
        size_max=config.job.max_code_size,
        data_files=_schema_files(graph),
        ours=[folder / each for each in ours if not is_url(each)],
    )
    submission = Submission(
        job=job_name(graph, config),
        reference=stored_reference(reference, folder, pipeline),
        working_folder=str(folder),
        params=dict(options.params),
        parallelism=config.job.parallelism,
        max_parallelism=config.job.max_parallelism,
        settings=config.to_dict(),
        fingerprint=graph.fingerprint(),
        code_digest=archive.digest,
        python_version=platform.python_version(),
        tidegate_version=TIDEGATE,
        bounded=options.bounded,
        drain=options.bounded and options.drain is not False,
        restore=options.restore,
        accept_data_loss=options.accept_data_loss,
        take_over=options.take_over,
        restore_to_other_cluster=options.restore_to_other_cluster,
        id=secrets.token_hex(8),
        code=StoredCode(digest=archive.digest, size=archive.size),
    )
    return submission, graph, archive


def steps_that_drain(graph: StreamGraph, options: RunOptions) -> list[str]:
    """Return the steps that fire at the end of the run although the user has not chosen so."""
    if not options.bounded or options.drain is not None:
        return []
    return [node.id for node in graph if node.fires]


def job_name(graph: StreamGraph, config: Config) -> JobName:
    """Return the job's name: `job.name`, or else the name in the class statement."""
    return JobName(config.job.name or graph.name)


def _schema_files(graph: StreamGraph) -> list[str]:
    """Return the schema files of sources and sinks, with their paths as the user wrote them."""
    formats = [getattr(node.declaration, name, None) for node in graph for name in ("key", "value")]
    return sorted({each.file for each in formats if isinstance(each, Avro) and each.file})


def check_environment(
    graph: StreamGraph,
    config: Config,
    folder: Path,
    drivers: Drivers,
    *,
    live: bool = True,
    tasks_run_here: bool = True,
) -> None:
    """Check the storage, the brokers and the local folders.

    A job that is not `live` is a backfill, whose waves do not use the intervals and limits of live
    checkpoints. If its tasks do not run on this machine, their local folder is not here either.

    Raise RefusedError, which says what to do. Also raise it if storage or brokers do not answer.
    """
    try:
        store = drivers.blob_store(locate(config.checkpoint.dir, folder))
        store.probe(allow_network_filesystem=config.checkpoint.allow_network_filesystem)
        check_kafka(graph, config, drivers, live=live)
        _check_folder("logs.dir", folder / config.logs.dir)
        if tasks_run_here:
            _check_folder("state.local_dir", folder / config.state.local_dir)
    except ExternalError as error:
        # A running job waits for the end of such an outage. Before the submit no job runs.
        raise RefusedError(str(error)) from error


def check_kafka(graph: StreamGraph, config: Config, drivers: Drivers, *, live: bool = True) -> None:
    """Check topics, access rights and, for a live job, the transaction timeout.

    Raise RefusedError if one of them is wrong, and ExternalError if the brokers do not answer.
    """
    kafka = config.kafka.client_settings()
    admin = drivers.kafka_admin(kafka)
    try:
        admin.cluster_id()
        _check_topics(graph, config, admin)
        limit_ms = admin.transaction_max_timeout_ms() if live else None
    finally:
        admin.close()
    if limit_ms is not None:
        check_against_broker(config.checkpoint, limit_ms)
    # Without properties all clients are anonymous and have no rights to check. Skipping the check
    # saves a third of a second for the import of another client.
    if config.kafka.properties and any(is_transactional(node) for node in graph):
        check_transactional_ids(job_name(graph, config), config, kafka, drivers)


def _check_folder(setting: str, folder: Path) -> None:
    """Check that the folder can be written.

    Every process writes there. A process that cannot would die without a message in the terminal.
    """
    try:
        make_private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"1")
    except OSError as error:
        raise RefusedError(
            f"The folder {folder} ({setting}) cannot be written: {error.strerror}. Make room "
            f"there, or set {setting} to another folder."
        ) from error


def _check_topics(graph: StreamGraph, config: Config, admin: KafkaAdmin) -> None:
    """Check all topics, and report all that cannot be used in one error."""
    refused: list[RefusedError] = []
    for node in kafka_nodes(graph):
        try:
            check_topic_access(node, topic_of(config, node), admin)
        except RefusedError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise RefusedError(
            "\n".join([f"{counted(len(refused), 'topic')} cannot be used.", *map(str, refused)])
        )


def check_topic_access(node: Node, topic: str, admin: KafkaAdmin) -> None:
    """Check that the topic exists and that the job may read or write it."""
    right = "READ" if node.kind == "source" else "WRITE"
    section = "sources" if node.kind == "source" else "sinks"
    whose = f"{node.kind} {node.id!r} ({node.location})"
    if node.inputs and node.inputs[0].port == DEAD_LETTERS:
        whose = f"the dead letters of {node.inputs[0].node!r} ({node.location})"
    elif node.inputs and node.inputs[0].port.endswith(KEY_DEAD_LETTERS):
        step = node.id.removesuffix(KEY_DEAD_LETTERS)
        whose = f"the dead letters of the key_by before {step!r} ({node.location})"
    try:
        admin.partitions(topic)
        rights = admin.rights(topic)
    except RefusedError as error:
        absent = isinstance(error, TopicAbsentError)
        raise RefusedError(
            f"The topic of {whose} cannot be used: {error} The name comes from the pipeline, or "
            f"from {section}.{node.id}.topic in the configuration."
            f"{' For development, add --create-topics to tidegate run.' if absent else ''}"
        ) from error
    if rights is not None and right not in rights:
        raise RefusedError(
            f"The job may not {right.lower()} topic {topic!r}, the topic of {whose}: the rights "
            f"that Kafka gives to its principal there are {', '.join(sorted(rights)) or 'none'}. "
            f"Grant it {right}, or run the job with other credentials in kafka.properties."
        )


def is_transactional(node: Node) -> bool:
    """Return whether a node is a sink that writes Kafka's transactions."""
    sink = node.declaration
    return (
        isinstance(sink, Sink)
        and sink.transaction_system == KAFKA
        and sink.guarantee == "exactly_once"
    )


def check_transactional_ids(
    job: JobName, config: Config, kafka: Mapping[str, str], drivers: Drivers
) -> None:
    """Check that the job may use its transactional ids.

    The check ends a transaction that cannot exist. The broker checks the right first, and the rest
    of its answer does not matter here, nor does a missing answer.
    """
    log = drivers.transaction_admin(kafka)
    try:
        probe = TransactionalId(f"{job_prefix(job)}preflight")
        if log.end(probe, 0, 0, commit=False) is EndTxnResult.NOT_AUTHORISED:
            raise RefusedError(
                f"The job may not use transactional ids that begin with {job_prefix(job)!r}, which "
                "its sinks need to write exactly once. Grant its principal WRITE on transactional "
                f"ids with this prefix at {config.kafka.bootstrap_servers}, or give every sink "
                "guarantee='at_least_once'."
            )
    finally:
        log.close()


def check_restore(restore: str) -> None:
    """Raise ConfigError for a text that is neither latest nor none nor the id of a checkpoint."""
    if restore in {"latest", "none"}:
        return
    try:
        CheckpointId.parse(restore)
    except ValueError:
        raise ConfigError(
            f"--restore {restore!r} is neither latest nor none nor the id of a checkpoint, as in "
            "3-17; tidegate checkpoints lists those that are kept."
        ) from None


def _check_overrides(graph: StreamGraph, config: Config) -> None:
    """Refuse settings of a source or sink that the pipeline does not have: the name is mistyped."""
    for section, kind, given in (
        ("sources", "source", config.sources),
        ("sinks", "sink", config.sinks),
    ):
        names = sorted(node.id for node in graph if node.kind == kind)
        for name, settings in given.items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f" Did you mean {near[0]}?" if near else ""
                raise ConfigError(
                    f"The configuration has {section}.{name}, and the pipeline has no {kind} of "
                    f"that name; its {section} are: {', '.join(names)}.{hint}"
                )
            if settings.topic is not None:
                check_topic(f"{section}.{name}.topic", settings.topic)
            _check_properties(f"{section}.{name}.properties", settings.properties)
    _check_properties("kafka.properties", config.kafka.properties)


def _check_properties(where: str, properties: Mapping[str, str]) -> None:
    """Refuse Kafka properties that tidegate sets itself.

    For example, a client of another Kafka cluster would read offsets that do not exist there.
    """
    for name in sorted(properties.keys() & RESERVED_PROPERTIES.keys()):
        raise ConfigError(
            f"{where}.{name} is set by tidegate: {RESERVED_PROPERTIES[name]}. Remove it."
        )
