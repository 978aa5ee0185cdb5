"""Names at Kafka: a source's or sink's topic in effect, and a source's consumer group.

Topics are no parameters of a pipeline: `sources.orders.topic` in the configuration gives the source
`orders` another one, without a change of the class or of its state's identity.
"""

from __future__ import annotations

from typing import cast

from tidegate.api.kafka import Connector
from tidegate.config import Config
from tidegate.graph.stream_graph import Node
from tidegate.ids import JobName


def topic_of(config: Config, node: Node) -> str:
    """The topic that a source or sink node reads or writes."""
    overrides = config.sources if node.kind == "source" else config.sinks
    override = overrides.get(node.id)
    if override is not None and override.topic is not None:
        return override.topic
    return cast("Connector", node.declaration).topic


def consumer_group(job: JobName, source: str) -> str:
    """The group under which a source's positions are shown, and where `start="group"` begins:
    `tidegate.<job>.<source>`.
    """
    return f"tidegate.{job}.{source}"
