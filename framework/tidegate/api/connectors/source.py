"""The abstract source: the part of a source's declaration that the engine uses.

On the class, the attribute is the declaration (`OrderTotals.orders`: a KafkaSource[Order]), which
tests and tools use. On a pipeline object, inside `define`, a source is the stream that it starts
(`self.orders`: a Stream[Order]).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

from tidegate.api.declarations.connector import Connector
from tidegate.graph.stream_graph import StreamGraph

if TYPE_CHECKING:
    from tidegate.api.pipeline import Pipeline
    from tidegate.api.steps.streams import Stream

T = TypeVar("T")


class Source(Connector, Generic[T]):
    """A declaration of an external system that the pipeline reads."""

    @abstractmethod
    def record_type(self) -> object:
        """Return the type of the stream's records."""

    @abstractmethod
    def connect(self, graph: StreamGraph) -> None:
        """Add the source to a graph that does not have it."""

    @overload
    def __get__(self, instance: None, owner: type[Pipeline]) -> Self: ...
    @overload
    def __get__(self, instance: Pipeline, owner: type[Pipeline]) -> Stream[T]: ...
    def __get__(self, instance: Pipeline | None, owner: type[Pipeline]) -> Self | Stream[T]:
        if instance is None:
            return self
        return instance._stream_of(self)  # noqa: SLF001 - a public name would be taken from users
