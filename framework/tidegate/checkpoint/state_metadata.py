"""The metadata that a restore compares: the steps with state, the sources, and both parallelisms.

The metadata is derived from the graph at submit and written into every manifest. So a restore can
compare the two when the pipeline has changed. Nothing else ties state to code: function names, the
shape of the graph and stateless steps may change freely.
"""

from __future__ import annotations

import msgspec

from tidegate.ids import Uid


class StepMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A step with keyed state."""

    uid: Uid
    key_type: str
    """The name of the key's type, as `api` writes it."""
    states: dict[str, str] = msgspec.field(default_factory=dict)
    """Per state name: the schema (JSON) under which its values are stored, as in
    `KeyedSnapshot.schemas`. Earlier versions wrote another form, so a restore uses only the names.
    """
    key_schema: str = ""
    """The schema (JSON) of the step's keys. Earlier versions did not write it."""
    renamed_from: dict[str, str] = msgspec.field(default_factory=dict)
    """Per renamed state: its former name."""
    dropped_states: tuple[str, ...] = ()
    """Names of states whose values the code declares as deleted."""
    fixed: dict[str, str] = msgspec.field(default_factory=dict)
    """Facts about the step that cannot change while a checkpoint has its state: for windows, the
    kind, and the sizes on which the layout of the state depends.
    """


class SourceMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """A source and the topic that it reads."""

    uid: Uid
    topic: str


class StateMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan that matters for its state."""

    parallelism: int
    max_parallelism: int
    steps: tuple[StepMetadata, ...] = ()
    sources: tuple[SourceMetadata, ...] = ()
    tz_database: str = ""
    """The version of the tz database, if a step has calendar windows. A restore with another
    version is allowed, and logged.
    """
