"""The topic of a source or sink in effect: the configuration's override, or the declaration's.

Topics are no parameters of a pipeline: `sources.orders.topic` in the configuration gives the source
`orders` another one, without a change of the class or of its state's identity.
"""

from __future__ import annotations

from typing import cast

from tidegate.api.kafka import Connector
from tidegate.config import Config
from tidegate.graph.logical import Node


def topic_of(config: Config, node: Node) -> str:
    """The topic that a source or sink node reads or writes."""
    overrides = config.sources if node.kind == "source" else config.sinks
    override = overrides.get(node.id)
    if override is not None and override.topic is not None:
        return override.topic
    return cast("Connector", node.declaration).topic
