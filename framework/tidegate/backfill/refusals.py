"""What a backfill refuses before it runs anything: what waves cannot run, and what they would not
read.

A wave runs everything that the API has today: every kind of step, both exchanges, every policy and
every guarantee. A sink that is written `at_least_once` or with the guarantee `none` is flushed at
the end of each wave, because the barrier of a wave is a final one. What the API refuses (timers,
windows, async steps, state that expires) is refused when the pipeline is built, here too.

So two things are left. The first is what the API does not have yet: a step is refused by its uid
if its kind does not run in waves (`graph/operator_kinds.py`), or if waves do not have its exchange.
The second is a source that begins at the end of its topic: a live job reads what comes, and a
backfill would read nothing of it and say nothing.

`open` and `close` of a function are called once in each wave for each subtask. What an object keeps
between two records beside its state lasts for one wave at most, as it lasts for one attempt of a
live job. This cannot be seen from here and is not refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

from tidegate.api.kafka_source import KafkaSource
from tidegate.errors import RefusedError
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.stream_graph import Exchange, StreamGraph

EXCHANGES: Final[frozenset[Exchange]] = frozenset({"forward", "key"})
"""The exchanges that waves carry rows along."""


def refuse_unknown_steps(graph: StreamGraph) -> None:
    """RefusedError for the first step, or way into a step, that waves do not run."""
    for node in graph:
        what = (
            None if operator_kind(node.kind).runs_in_waves else f"a step of the kind {node.kind!r}"
        )
        for edge in node.inputs:
            if edge.partitioning not in EXCHANGES:
                what = f"reached by an exchange of the kind {edge.partitioning!r}"
        if what is not None:
            raise RefusedError(
                f"{node.place}: {node.id!r} is {what}, which a backfill cannot run. Run the job "
                "live, with tidegate run --bounded."
            )


def refuse_unread_sources(graph: StreamGraph, begins: Collection[str]) -> None:
    """RefusedError for a source that begins at the end of its topic, where no checkpoint has a
    position of it: it is among `begins`.
    """
    for node in graph:
        if node.kind != "source" or node.id not in begins:
            continue
        source = cast("KafkaSource[object]", node.declaration)
        if source.starting_offsets == "latest":
            raise RefusedError(
                f"{node.place}: source {node.id!r} has starting_offsets='latest', and the job "
                "has no checkpoint with a position of it: a backfill would read nothing of topic "
                f"{source.topic!r}, and would not say so. Give the source "
                "starting_offsets='earliest', a timestamp or offsets. Or run the job live first: a "
                "backfill then continues from its checkpoint."
            )
