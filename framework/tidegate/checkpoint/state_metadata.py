"""What a restore compares: the steps that hold state, the sources, and the two parallelisms.

Derived from the graph at submit and written into every manifest, so that the two can be compared
when the pipeline has changed. It is all that ties state to code: names of functions, the shape of
the graph and stateless steps may change freely.
"""

from __future__ import annotations

import msgspec

from tidegate.ids import Uid


class StepMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A step with keyed state."""

    uid: Uid
    key_type: str
    """The name of the key's type, as `api` spells it."""
    states: dict[str, str] = msgspec.field(default_factory=dict)
    """Per state name: the schema (JSON) that its values are stored under, as
    `KeyedSnapshot.schemas` has it. Earlier versions wrote another form; only the names are used.
    """
    key_schema: str = ""
    """The schema (JSON) of the step's keys. Earlier versions did not write it."""
    renamed_from: dict[str, str] = msgspec.field(default_factory=dict)
    """Per renamed state: the name that it had before."""
    dropped_states: tuple[str, ...] = ()
    """Names of states whose values the code wants deleted."""


class SourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A source and the topic that it reads."""

    uid: Uid
    topic: str


class StateMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of a plan for its state."""

    parallelism: int
    max_parallelism: int
    steps: tuple[StepMetadata, ...] = ()
    sources: tuple[SourceMetadata, ...] = ()
