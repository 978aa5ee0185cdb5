"""The base of all sources and sinks: the name and the place of a declaration.

Sources and sinks are declared as class attributes of a pipeline. A declaration holds no graph, so
two builds or two pipelines in one process do not affect each other.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from typing import Final

from tidegate.api.declarations.location import user_location
from tidegate.errors import PipelineError

_DECLARED: Final = "_tidegate_declared"
"""The name in a class body for all declarations of that body."""


class Connector(ABC):
    """A declaration of an external system that a pipeline reads or writes.

    Its name is the name of the class attribute. The name is its uid and, for an exactly-once sink,
    part of transactional ids.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.location = user_location()
        """File and line of the declaration."""
        _remember_in_class_body(self)

    @property
    @abstractmethod
    def target(self) -> str:
        """The external system in words, for error messages: "topic 'orders'"."""

    def __set_name__(self, owner: type, name: str) -> None:
        # An error raised here would reach the user wrapped in a RuntimeError (Python 3.11);
        # Pipeline.__init_subclass__ raises it.
        self.names.append(name)

    @property
    def name(self) -> str:
        """Name of the class attribute; PipelineError if the connector is not such an attribute."""
        if not self.names:
            raise PipelineError(
                f"{self.location}: the declaration for {self.target} is not a class attribute of a "
                "pipeline."
            )
        return self.names[0]


def declared_in(body: type) -> list[Connector]:
    """Return all connectors that were declared in the body of a class, also those whose name
    another assignment has taken.
    """
    declared: list[Connector] = vars(body).get(_DECLARED, [])
    return declared


def _remember_in_class_body(connector: Connector) -> None:
    """Add a connector to the class body that runs now, if there is one.

    A metaclass could see assignments too. But type checkers do not check the keywords of a class
    statement with a metaclass, such as `name=` of a pipeline.
    """
    frame = sys._getframe()  # noqa: SLF001 - cheap, as in `user_location`
    while (caller := frame.f_back) is not None:
        frame = caller
        names = frame.f_locals
        if names is not frame.f_globals and "__qualname__" in names and "__module__" in names:
            names.setdefault(_DECLARED, []).append(connector)
            return
