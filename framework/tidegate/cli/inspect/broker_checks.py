"""The checks of `tidegate check --kafka`: a pipeline's topics, rights and timeouts on the brokers.

The checks of `controlplane/client/preflight.py`, which a run makes before it starts, are made here
too, and are errors. In contrast to a run, this module continues after a problem, so that one list
has all of them. It adds checks of topic settings. Such a setting is an error if the job cannot
work with it, and a warning if records can be lost or unread by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec

from tidegate.api.connectors.kafka_names import consumer_group, kafka_nodes, topic_of
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.commit.timeouts import check_against_broker, required_transaction_timeout_ms
from tidegate.config import Config
from tidegate.controlplane.client.preflight import (
    check_topic_access,
    check_transactional_ids,
    is_transactional,
    job_name,
)
from tidegate.drivers.kafka.topic_settings import TopicSettings, TopicSettingsAdmin
from tidegate.errors import ExternalError, RefusedError
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.ids import JobName
from tidegate.message_text import counted
from tidegate.ports.drivers import Drivers

Level = Literal["error", "warning"]

KEEP_THE_KEY: Final = frozenset({"source", "map", "filter", "flat_map"})
"""The kinds of steps behind which a record still has the key that it had in the source's topic."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem of a pipeline, of its configuration or of its brokers."""

    level: Level = "error"
    about: str
    """The thing that has the problem, such as "source orders"."""
    text: str
    unreachable: bool = False
    """Whether the brokers did not answer, so that nothing is known."""


def broker_problems(graph: StreamGraph, config: Config, drivers: Drivers) -> Iterator[Problem]:
    """Yield all problems that the brokers know of. If they do not answer, that is the last one."""
    kafka = config.kafka.client_settings()
    admin = TopicSettingsAdmin(kafka)
    job = job_name(graph, config)
    try:
        admin.cluster_id()
        for node in kafka_nodes(graph):
            keyless = is_keyless(graph, node)
            topic = topic_of(config, node)
            yield from _topic_problems(node, topic, job, config, admin, keyless=keyless)
        yield from _transaction_problems(graph, job, config, kafka, admin, drivers)
    except RefusedError as error:
        yield Problem(about="kafka", text=str(error))
    except ExternalError as error:
        yield Problem(about="kafka", text=str(error), unreachable=True)
    finally:
        admin.close()


def _topic_problems(
    node: Node,
    topic: str,
    job: JobName,
    config: Config,
    admin: TopicSettingsAdmin,
    *,
    keyless: bool,
) -> Iterator[Problem]:
    about = f"{node.kind} {node.id}"
    try:
        check_topic_access(node, topic, admin)
    except RefusedError as error:
        yield Problem(about=about, text=str(error))
        return
    if node.kind == "source":
        yield from _group_problems(about, consumer_group(job, node.id), config, admin)
    settings = admin.topic_settings(topic)
    if settings is None:
        text = (
            f"The settings of topic {topic!r} were not checked: the principal may not read them "
            "(DESCRIBE_CONFIGS on the topic)."
        )
        yield Problem(level="warning", about=about, text=text)
    elif node.kind == "source":
        yield from source_topic_problems(about, topic, settings, config)
    else:
        yield from sink_topic_problems(about, topic, settings, keyless=keyless)


def _group_problems(
    about: str, group: str, config: Config, admin: TopicSettingsAdmin
) -> Iterator[Problem]:
    # Without properties all clients are anonymous and have no rights to check.
    if config.kafka.properties and not admin.may_commit(group):
        text = (
            f"The principal may not commit offsets to consumer group {group!r}. The job runs "
            "without these commits, but monitoring of the lag does not see its position. Grant "
            "READ on the group."
        )
        yield Problem(level="warning", about=about, text=text)


def source_topic_problems(
    about: str, topic: str, settings: TopicSettings, config: Config
) -> Iterator[Problem]:
    """Yield the problems of a topic that a source reads."""
    if settings.partitions < config.job.parallelism:
        text = (
            f"Topic {topic!r} has {counted(settings.partitions, 'partition')} and the job has "
            f"parallelism {config.job.parallelism}, so the source leaves "
            f"{counted(config.job.parallelism - settings.partitions, 'subtask')} without records. "
            "Add partitions, or lower --parallelism."
        )
        yield Problem(level="warning", about=about, text=text)
    if "compact" in settings.cleanup_policy:
        text = (
            f"Topic {topic!r} is compacted (cleanup.policy), so Kafka may delete a record before "
            "the job reads it, if a newer record has the same key. Use cleanup.policy=delete if "
            "every record counts."
        )
        yield Problem(level="warning", about=about, text=text)
    least_ms = required_transaction_timeout_ms(config.checkpoint)
    if (
        settings.retention_ms is not None
        and "delete" in settings.cleanup_policy
        and settings.retention_ms < least_ms
    ):
        text = (
            f"Topic {topic!r} keeps records for {settings.retention_ms / 1000:g} s (retention.ms), "
            f"and a job may need {least_ms / 1000:g} s to recover (checkpoint.timeout and "
            "checkpoint.tolerated_outage): records that it has not read yet may be deleted. Raise "
            "retention.ms."
        )
        yield Problem(about=about, text=text)


def sink_topic_problems(
    about: str, topic: str, settings: TopicSettings, *, keyless: bool
) -> Iterator[Problem]:
    """Yield the problems of a topic that a sink writes. `keyless`: its records have no key."""
    if "compact" in settings.cleanup_policy and keyless:
        text = (
            f"Topic {topic!r} is compacted (cleanup.policy), and Kafka refuses records without a "
            "key in such a topic, but the sink has no record_key=. Add record_key=, or use "
            "cleanup.policy=delete."
        )
        yield Problem(about=about, text=text)
    if settings.min_insync_replicas > settings.replicas:
        text = (
            f"Topic {topic!r} has {counted(settings.replicas, 'replica')} and min.insync.replicas="
            f"{settings.min_insync_replicas}, so Kafka refuses all records. Lower that setting, or "
            "add replicas."
        )
        yield Problem(about=about, text=text)
    if settings.unclean_leader_election:
        text = (
            f"Topic {topic!r} allows unclean leader elections, so Kafka may lose records that a "
            "checkpoint has committed. Set unclean.leader.election.enable=false."
        )
        yield Problem(level="warning", about=about, text=text)


def is_keyless(graph: StreamGraph, node: Node) -> bool:
    """Return whether a sink writes records without a key: it has no `record_key=`, and a step in
    front of it does not keep the key of the source.
    """
    sink = node.declaration
    if not isinstance(sink, KafkaSink) or sink.record_key is not None or sink.full_record:
        return False
    behind = [edge.node for edge in node.inputs]
    while behind:
        before = graph.nodes[behind.pop()]
        if before.kind not in KEEP_THE_KEY:
            return True
        behind += [edge.node for edge in before.inputs]
    return False


def _transaction_problems(
    graph: StreamGraph,
    job: JobName,
    config: Config,
    kafka: dict[str, Any],
    admin: TopicSettingsAdmin,
    drivers: Drivers,
) -> Iterator[Problem]:
    limit_ms = admin.transaction_max_timeout_ms()
    if limit_ms is None:
        text = (
            "transaction.max.timeout.ms of the brokers was not checked: the principal may not read "
            "it (DESCRIBE_CONFIGS on the cluster)."
        )
        yield Problem(level="warning", about="transactions", text=text)
    else:
        try:
            check_against_broker(config.checkpoint, limit_ms)
        except RefusedError as error:
            yield Problem(about="transactions", text=str(error))
    if config.kafka.properties and any(is_transactional(node) for node in graph):
        try:
            check_transactional_ids(job, config, kafka, drivers)
        except RefusedError as error:
            yield Problem(about="transactions", text=str(error))
