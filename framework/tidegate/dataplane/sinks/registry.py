"""The writer of each class of sinks, registered once.

`api/` declares a sink and never imports its writer. This table connects the two. ARCHITECTURE.md
has the recipe "Add a sink".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.sink import Sink
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sink_writer import SinkWriter
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.errors import InternalError
from tidegate.graph.stream_graph import Node
from tidegate.ids import Uid

MakeWriter = Callable[[Any, Uid, SubtaskContext, Refusals], SinkWriter]

SINK_WRITERS: Final[dict[type[Sink[Any]], MakeWriter]] = {KafkaSink: KafkaSinkWriter}
"""Makers of writers by class of the declaration. A class without an entry has its base's."""


def make_sink_writer(node: Node, context: SubtaskContext, refusals: Refusals) -> SinkWriter:
    """Return the writer of a sink node in one subtask.

    Raise InternalError if no writer is registered for the class of the declaration.
    """
    for kind in type(node.declaration).__mro__:
        if kind in SINK_WRITERS:
            return SINK_WRITERS[kind](node.declaration, Uid(node.id), context, refusals)
    name = type(node.declaration).__name__
    raise InternalError(f"sink {node.id!r} ({node.location}): no writer is registered for {name}")
