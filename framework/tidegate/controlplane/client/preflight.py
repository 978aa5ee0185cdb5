"""What is done before a job is submitted: build it here, and ask the world whether it can run.

Everything that can be refused is refused now, in the user's terminal, with nothing started:
mistakes in the class, unknown settings, a storage that cannot hold a journal, topics that are not
there, a transaction timeout that the brokers would cut short. The cluster checks the rest again by
itself.
"""

from __future__ import annotations

import platform
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidegate.api.code import code_digest, load_pipeline
from tidegate.api.pipeline import Pipeline, build
from tidegate.api.topics import topic_of
from tidegate.checkpoint.timeouts import check_against_broker
from tidegate.config import Config
from tidegate.errors import ConfigError
from tidegate.graph.logical import Graph
from tidegate.graph.plan import plan
from tidegate.ids import JobName
from tidegate.ports.drivers import Drivers
from tidegate.protocol.messages import Submission


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a submit may say beside the configuration."""

    params: Mapping[str, str]
    bounded: bool = False
    restore: str = "latest"
    accept_loss: bool = False
    take_over: bool = False


def class_settings(pipeline: type[Pipeline]) -> dict[str, Any]:
    """The settings of the class statement, as dotted keys for the configuration's lowest layer."""
    said = pipeline.settings
    settings = {
        "job.parallelism": said.parallelism,
        "job.max_parallelism": said.max_parallelism,
        "checkpoint.interval": said.checkpoint_interval_ms,
    }
    return {key: value for key, value in settings.items() if value is not None}


def load_for_submit(reference: str, folder: Path) -> type[Pipeline]:
    """The pipeline class; PipelineError if it cannot be imported."""
    return load_pipeline(reference, folder)


def make_submission(
    reference: str,
    folder: Path,
    pipeline: type[Pipeline],
    config: Config,
    options: RunOptions,
) -> tuple[Submission, Graph]:
    """Build the graph and describe the job; PipelineError or ConfigError for what is wrong with
    it.
    """
    graph = build(pipeline, options.params)
    plan(graph, config.job.parallelism, config.job.max_parallelism)
    _check_overrides(graph, config)
    submission = Submission(
        job=JobName(graph.name),
        reference=reference,
        working_folder=str(folder),
        params=dict(options.params),
        parallelism=config.job.parallelism,
        max_parallelism=config.job.max_parallelism,
        settings=config.to_dict(),
        fingerprint=graph.fingerprint(),
        code_digest=code_digest(pipeline),
        python_version=platform.python_version(),
        tidegate_version=version("tidegate"),
        bounded=options.bounded,
        restore=options.restore,
        accept_loss=options.accept_loss,
        take_over=options.take_over,
        id=secrets.token_hex(8),
    )
    return submission, graph


def check_world(graph: Graph, config: Config, folder: Path, drivers: Drivers) -> None:
    """Ask storage and brokers; RefusedError, KafkaError or StorageError that says what to do."""
    storage = config.checkpoint.storage
    drivers.blob_store(storage if "://" in storage else str(folder / storage)).probe()
    kafka = {"bootstrap.servers": config.kafka.bootstrap, **config.kafka.properties}
    admin = drivers.kafka_admin(kafka)
    try:
        admin.cluster_id()
        for node in graph:
            if node.kind in {"source", "sink"}:
                admin.partitions(topic_of(config, node))
        check_against_broker(config.checkpoint, admin.transaction_max_timeout_ms())
    finally:
        admin.close()


def _check_overrides(graph: Graph, config: Config) -> None:
    """A section for a source or sink that the pipeline does not have is a mistyped name."""
    for section, kind, given in (
        ("sources", "source", config.sources),
        ("sinks", "sink", config.sinks),
    ):
        names = sorted(node.id for node in graph if node.kind == kind)
        for name in given:
            if name not in names:
                raise ConfigError(
                    f"The configuration has {section}.{name}, and the pipeline has no {kind} of "
                    f"that name; its {section} are: {', '.join(names)}."
                )
