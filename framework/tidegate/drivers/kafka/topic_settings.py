"""The settings of topics, and the rights on consumer groups, for `tidegate check`.

A running job needs neither, so they are not in the port `KafkaAdmin`. Each question is answered, or
fails within about ten seconds, as in `admin.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported by assignment
    ConfigResource,
)

from tidegate.drivers.kafka.admin import KafkaClusterAdmin, configs_of
from tidegate.errors import NotAllowedError

READ: Final = "READ"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that matter to a job."""

    partitions: int
    replicas: int
    """The smallest number of replicas of a partition."""
    cleanup_policy: frozenset[str]
    retention_ms: int | None
    """None if the topic keeps its records for ever, as far as their age matters."""
    min_insync_replicas: int
    unclean_leader_election: bool


class TopicSettingsAdmin(KafkaClusterAdmin):
    """An admin client that also reads settings of topics and rights on consumer groups."""

    def topic_settings(self, topic: str) -> TopicSettings | None:
        """Return the settings of a topic, or None if the principal may not read them.

        Reading them needs DESCRIBE_CONFIGS on the topic, a right that no job needs otherwise.
        """
        partitions = self._described(topic).partitions
        try:
            found = self._answers(
                [topic],
                lambda _: f"read the settings of topic {topic}",
                configs_of(ConfigResource.Type.TOPIC),
            )[topic]
        except NotAllowedError:
            return None
        retention_ms = int(found["retention.ms"].value)
        return TopicSettings(
            partitions=len(partitions),
            replicas=min(len(each.replicas) for each in partitions),
            cleanup_policy=frozenset(found["cleanup.policy"].value.split(",")),
            retention_ms=None if retention_ms < 0 else retention_ms,
            min_insync_replicas=int(found["min.insync.replicas"].value),
            unclean_leader_election=found["unclean.leader.election.enable"].value == "true",
        )

    def may_commit(self, group: str) -> bool:
        """Return whether the principal may commit offsets to a consumer group: whether it has READ.
        True if the brokers do not report the rights.
        """
        try:
            described = self._answers(
                [group],
                lambda _: f"describe consumer group {group}",
                lambda client, groups, left_s: client.describe_consumer_groups(
                    groups, include_authorized_operations=True, request_timeout=left_s
                ),
            )[group]
        except NotAllowedError:
            return False
        allowed = described.authorized_operations
        return allowed is None or READ in {each.name for each in allowed}
