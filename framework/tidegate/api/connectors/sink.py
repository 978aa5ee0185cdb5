"""The abstract sink: the part of a sink's declaration that the engine uses.

`Stream.to` takes any sink. `dataplane/sinks/registry.py` names the writer of each class of sinks.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar

from tidegate.api.declarations.connector import Connector
from tidegate.api.records.copying import copy_value
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import TRANSACTION_SYSTEM

T = TypeVar("T")

SYSTEM_NAME: Final = re.compile(TRANSACTION_SYSTEM)

Guarantee = Literal["exactly_once", "at_least_once", "none"]


class Sink(Connector, Generic[T]):
    """A declaration of an external system that the pipeline writes."""

    transaction_system: ClassVar[str] = ""
    """The system whose transactions the writer prepares: `KAFKA`, or the name of a registered
    coordinator (`drivers/transaction_coordinators.py`). A sink without transactions has an empty
    name, and cannot promise "exactly_once".
    """
    guarantee: Guarantee
    """The guarantee that a reader of the external system has after a failure of the job:

    - "exactly_once": records become visible together with their checkpoint, each once;
    - "at_least_once": records since the last checkpoint may come twice, and none is lost;
    - "none": records may be lost or come twice.
    """

    record_key: Callable[[T], Any] | None = None
    """The user's function from a record to its key. Without it, a sink directly behind a source
    gets the keys that the records were read with.
    """

    @property
    def checks_all_fields(self) -> bool:
        """Whether all fields of every record are checked against the type, not only a sample."""
        return False

    def connect(self, graph: StreamGraph, edges: tuple[Edge, ...]) -> None:
        """End a chain at this sink; a second chain adds its edges to the same node.

        Raise PipelineError if the sink promises more than its writer can keep.
        """
        if self.guarantee == "exactly_once" and not self.transaction_system:
            raise PipelineError(
                f"{self.location}: sink {self.name!r} has guarantee='exactly_once', but a "
                f"{type(self).__name__} has no transactions. Use guarantee='at_least_once'."
            )
        if self.transaction_system and SYSTEM_NAME.fullmatch(self.transaction_system) is None:
            raise PipelineError(
                f"{self.location}: transaction_system = {self.transaction_system!r} of "
                f"{type(self).__name__} must be 1 to 32 lower-case letters, digits and "
                "underscores, and begin with a letter: it is part of transactional ids."
            )
        before = graph.nodes.get(self.name)
        if before is not None and before.declaration is self:
            graph.remove(self.name)
            edges = before.inputs + edges
        graph.add(
            "sink",
            edges,
            location=self.location,
            uid=self.name,
            options=self.describe(),
            function=self.record_key,
            declaration=self,
            record_type=self.record_type(),
        )

    @abstractmethod
    def record_type(self) -> object:
        """Return the type of the records that the sink takes."""

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """Return the options of the sink as plain JSON, for the graph's fingerprint."""

    def round_trip(self) -> Callable[[Any], Any]:
        """Return a function from a record to what a reader of the external system gets.

        `PipelineTest` calls it, and not for Kafka sinks, which it encodes and decodes itself. The
        function raises the exception of the encoder for a record that cannot be written. A sink
        whose encoding changes no record needs none of its own.
        """
        return copy_value
