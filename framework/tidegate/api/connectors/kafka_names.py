"""Names in Kafka: the effective topic of a source or sink, and a source's consumer group.

Topics are not parameters of a pipeline. `sources.orders.topic` in the configuration gives the
source `orders` another topic. The pipeline class and the identity of its state do not change.
"""

from __future__ import annotations

from typing import cast

from tidegate.api.connectors.kafka_connector import KafkaConnector
from tidegate.config import Config
from tidegate.graph.stream_graph import Node, StreamGraph
from tidegate.ids import JobName


def kafka_nodes(graph: StreamGraph) -> list[Node]:
    """Return the sources and sinks of a graph that read or write a Kafka topic."""
    return [node for node in graph if isinstance(node.declaration, KafkaConnector)]


def topic_of(config: Config, node: Node) -> str:
    """Return the topic that a node of `kafka_nodes` reads or writes."""
    configured = config.source(node.id) if node.kind == "source" else config.sink(node.id)
    return configured.topic or cast("KafkaConnector", node.declaration).topic


def consumer_group(job: JobName, source: str) -> str:
    """Return the consumer group of a source, `tidegate.<job>.<source>`.

    The group's offsets show the source's positions, and `starting_offsets="committed"` begins at
    them.
    """
    return f"tidegate.{job}.{source}"
