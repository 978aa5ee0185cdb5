"""Makes a broker the leader although it lacks the newest records, in a cluster of three brokers.

Kafka can lose acknowledged records in an unclean leader election: the only replica that has them is
away, and an operator (or `unclean.leader.election.enable`) makes another replica the leader. This
module causes such an election in the usual order. `LAGGING` dies. Records are written that only
`LEADER` has. `LEADER` dies. `LAGGING` comes back, and Kafka's own request elects it. `WITNESS`
takes no part: it gives the controllers a majority, and holds the topics that must lose nothing.

This module handles only the brokers and knows nothing of jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from integration.support.brokers import TIMEOUT_S, unique
from integration.support.running import TooLateError
from tidegate.drivers.kafka.embedded import EmbeddedKafka

LEADER: Final = 0
LAGGING: Final = 1
WITNESS: Final = 2
LOSES: Final = (LEADER, LAGGING)
KEEPS: Final = (WITNESS,)
"""The nodes of a topic that loses records, and of a topic that keeps them."""

ELECTION_TIMEOUT_S: Final = 240.0
POLL_S: Final = 0.1
UNCLEAN: Final = 1
"""The election type in Kafka's ElectLeaders request."""
PROPERTIES: Final = {
    # One replica is enough to acknowledge. Otherwise no acknowledged record could be lost.
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
}


class UncleanCluster:
    """The three brokers, as a context manager. All of them run at first."""

    def __init__(self, version: str, folder: Path) -> None:
        self.kafka = EmbeddedKafka.start(
            version, directory=folder, nodes=3, owned=True, properties=PROPERTIES
        )
        self._client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    @property
    def bootstrap(self) -> str:
        """The addresses of all three brokers."""
        return self.kafka.bootstrap

    def topic(self, name: str, nodes: Collection[int]) -> str:
        """Make a topic of one partition on these nodes. The first node leads it."""
        full = unique(name)
        made = NewTopic(full, num_partitions=1, replica_assignment=[[each + 1 for each in nodes]])
        self._client.create_topics([made], operation_timeout=TIMEOUT_S)[full].result(TIMEOUT_S)
        # Every node must know the topic: clients ask any node, and a job refuses a missing topic.
        for each in self.kafka.bootstrap.split(","):
            asked = AdminClient({"bootstrap.servers": each, "log_level": 0})
            self._until(partial(_is_led, asked, full), f"{each} knows {full}")
        return full

    def move(self, topic: str, nodes: Collection[int]) -> None:
        """Move every partition of a topic to these nodes, and make the first node the leader."""
        replicas = [each + 1 for each in nodes]
        partitions = self._partitions(topic)
        with self._admin() as admin:
            wanted = {TopicPartition(topic, number): replicas for number in partitions}
            answers = admin.alter_partition_reassignments(wanted)
            assert [error for error in answers.values() if error is not None] == []
            self._until(lambda: not admin.list_partition_reassignments(), f"{topic} has moved")
            admin.elect_leaders(0, {topic: list(partitions)}, raise_errors=False)
        self._until(
            lambda: all(
                each.leader == replicas[0] and len(each.isrs) == len(replicas)
                for each in self._partitions(topic).values()
            ),
            f"the first of the nodes {nodes} leads {topic}",
        )

    def fall_behind(self, topics: Collection[str]) -> None:
        """Kill `LAGGING`. From now on only `LEADER` has the new records of these topics."""
        self.kafka.kill(LAGGING)
        self._until(
            lambda: all(
                each.isrs == [LEADER + 1]
                for topic in topics
                for each in self._partitions(topic).values()
            ),
            "the leader is the only replica in sync",
        )

    def elect_unclean(self, topics: Collection[str]) -> None:
        """Kill `LEADER`, and make `LAGGING` lead these topics, which lacks the new records. Then
        restart `LEADER`, which adopts the log of the new leader.
        """
        wanted = {topic: list(self._partitions(topic)) for topic in topics}
        # Only these topics may lose their leader. On a slow machine the witness can have left the
        # replicas in sync of another topic.
        self._until(lambda: self._witness_replaces_leader(topics), "the witness is in sync")
        self.kafka.kill(LEADER)
        self.kafka.restart(LAGGING, warm=False)  # these topics may hold its coordinators
        # Kafka elects only after the witness knows which broker is away and which is back.
        self._until(lambda: self._alive() == {LAGGING, WITNESS}, "the lagging broker is back")
        with self._admin() as admin:
            self._until(lambda: self._elected(admin, wanted), "the lagging broker leads")
        # A busy machine delays the first heartbeat of the witness to the new controller. Then the
        # controller takes the witness for dead first, and `LEADER` is the last replica in sync of
        # the other topics. They have no leader until it is back.
        self.kafka.restart(LEADER)

    def _witness_replaces_leader(self, lost: Collection[str]) -> bool:
        """Return whether `WITNESS` is in sync in every partition of every topic but the lost ones
        and those that it does not hold.
        """
        asked = AdminClient({"bootstrap.servers": self._address(WITNESS), "log_level": 0})
        return all(
            WITNESS + 1 in each.isrs
            for name, topic in asked.list_topics(timeout=TIMEOUT_S).topics.items()
            if name not in lost
            for each in topic.partitions.values()
            if WITNESS + 1 in each.replicas
        )

    def _elected(self, admin: KafkaAdminClient, wanted: Mapping[str, list[int]]) -> bool:
        try:
            admin.elect_leaders(UNCLEAN, dict(wanted), raise_errors=False)
        except KafkaError:
            return False  # the dead broker was the controller, and no other is elected yet
        return all(
            each.leader == LAGGING + 1
            for topic in wanted
            for each in self._partitions(topic).values()
        )

    def _alive(self) -> set[int]:
        """Return the nodes that run, as the witness knows."""
        asked = AdminClient({"bootstrap.servers": self._address(WITNESS), "log_level": 0})
        return {id_ - 1 for id_ in asked.list_topics(timeout=TIMEOUT_S).brokers}

    def _address(self, node: int) -> str:
        return self.bootstrap.split(",")[node]

    def _partitions(self, topic: str) -> dict[int, Any]:
        """Return the partitions of a topic, as the witness knows them. No test kills the witness.

        A client that has learned of the other brokers may ask a dead one, so each call uses a new
        client.
        """
        asked = AdminClient({"bootstrap.servers": self._address(WITNESS), "log_level": 0})
        found: dict[int, Any] = asked.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return found

    def _admin(self) -> Any:
        return closing(KafkaAdminClient(bootstrap_servers=[self._address(WITNESS)]))

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + ELECTION_TIMEOUT_S
        while not condition():
            if time.monotonic() > end_s:
                message = f"This did not happen within {ELECTION_TIMEOUT_S:g} s: {what}."
                raise TooLateError(message)
            time.sleep(POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in (LEADER, LAGGING, WITNESS):  # a clean stop would take seconds
            self.kafka.kill(node)
        self.kafka.stop()


def _is_led(client: AdminClient, topic: str) -> bool:
    partitions = client.list_topics(topic, TIMEOUT_S).topics[topic].partitions
    return 0 in partitions and partitions[0].leader > 0
