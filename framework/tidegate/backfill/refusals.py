"""Refuses pipelines that a backfill cannot run: with steps that waves do not support, or with
sources of which a backfill would read nothing.

A wave runs every kind of step, both exchanges, every policy and every guarantee. Each sink with the
guarantee `at_least_once` or `none` is flushed at the end of each wave, because the barrier of a
wave is a final one. Timers of event time fire as in a live job, and what is not due at the end of a
wave waits for the next one.

There are three checks. The first one refuses a step with timers of processing time: a wave reads
years of records in minutes of the clock. It also refuses a step if its kind does not run in waves
(`graph/operator_kinds.py`), or if waves do not support its exchange; no step of today's API is of
such a kind. The second check refuses records without a schema in front of a step with several
inputs. A live job gives it these records as objects, but a wave sends them between processes as
rows. The third check refuses a source that begins at the end of its topic. A live job reads
the records that arrive later, but a backfill would silently read nothing.

`open` and `close` of a function are called once in each wave for each subtask. An attribute that is
not state therefore lasts for one wave at most, as it lasts for one attempt of a live job. This
module cannot detect such attributes and does not refuse them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, cast

from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.records.types import type_info
from tidegate.errors import PipelineError, RefusedError
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.stream_graph import UNKNOWN, Exchange, StreamGraph

PARTITIONINGS: Final[frozenset[Exchange]] = frozenset({"forward", "key"})
"""The exchanges that waves support."""


def refuse_unknown_steps(graph: StreamGraph) -> None:
    """Raise RefusedError for the first step or exchange that waves do not support."""
    for node in graph:
        what = (
            None if operator_kind(node.kind).runs_in_waves else f"a step of the kind {node.kind!r}"
        )
        if node.uses_clock:
            what = "a step with timers of processing time: they follow the clock, not the records"
        for edge in node.inputs:
            if edge.partitioning not in PARTITIONINGS:
                what = f"reached by an exchange of the kind {edge.partitioning!r}"
        if what is not None:
            raise RefusedError(
                f"{node.location}: {node.id!r} is {what}. A backfill cannot run it. Run the job "
                "live instead, with tidegate run --bounded."
            )


def refuse_records_without_schema(graph: StreamGraph) -> None:
    """Raise RefusedError for the first step with several inputs that gets records without a
    schema.
    """
    for node in graph:
        for edge in node.inputs if len(node.inputs) > 1 else ():
            try:
                type_info(edge.record_type)
            except PipelineError as error:
                sender = graph.nodes[edge.node]
                why = "not declared" if edge.record_type is UNKNOWN else f"of no use here: {error}"
                raise RefusedError(
                    f"{sender.location}: the type of the results of {sender.id!r} is {why}. "
                    f"{node.id!r} has several inputs, so a backfill sends the results to it as "
                    "rows, and rows need a schema. Declare a type with a schema: returns=TYPE, or "
                    "the annotation of what the function returns."
                ) from error


def refuse_unread_sources(graph: StreamGraph, sources_without_position: Collection[str]) -> None:
    """Raise RefusedError for a source that begins at the end of its topic.
    `sources_without_position` has the sources that have no position in a checkpoint.
    """
    for node in graph:
        if node.kind != "source" or node.id not in sources_without_position:
            continue
        source = cast("KafkaSource[object]", node.declaration)
        if source.starting_offsets == "latest":
            raise RefusedError(
                f"{node.location}: source {node.id!r} has starting_offsets='latest', and no "
                "checkpoint of the job has a position of this source. A backfill would silently "
                f"read nothing of topic {source.topic!r}. Set starting_offsets to 'earliest', a "
                "timestamp or offsets. Or run the job live first: a backfill then continues from "
                "its checkpoint."
            )
