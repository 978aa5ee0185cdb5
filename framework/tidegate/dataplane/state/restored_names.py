"""The names in a restored store: the rows of each declared state, and the rows to delete.

This module is called once when a step's state is opened, before any row is read. The names depend
only on the checkpoint and the declarations (`checkpoint/state_names.py`), so all subtasks compute
the same names. The rows of a dropped state are deleted here, in this subtask's range of key groups.
A later state of that name must begin empty. If the attempt ends before its first checkpoint, the
next attempt deletes them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from tidegate.api.state.state import State
from tidegate.checkpoint.state_names import assign_stored_names, match_states
from tidegate.dataplane.state.layout import entries_span, group_part, name_part
from tidegate.errors import PipelineError
from tidegate.ids import Uid
from tidegate.ports.kv import KeyValueStore
from tidegate.protocol.subtask_snapshot import KEY_TYPE

DELETED_AT_ONCE: Final = 10_000
"""Number of rows that one batch deletes: about a MB of store keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredNames:
    """The names of the declared states in a restored store."""

    stored: dict[str, str]
    """Name in store keys of each declared state."""
    in_checkpoint: dict[str, str]
    """Name in the checkpoint of each restored state. The checkpoint has its schemas under this
    name.
    """
    deleted: tuple[str, ...]
    """Names in store keys whose rows must be deleted."""


def restored_names(
    uid: Uid,
    states: Mapping[str, State],
    dropped: Collection[str],
    in_checkpoint: Iterable[str],
    stored_names: Mapping[str, str],
) -> RestoredNames:
    """Return the names of a step's states.

    Raise PipelineError for a state of the checkpoint that is neither declared nor dropped. The
    JobMaster refuses such a job earlier, so no row is ever read by mistake.
    """
    known = {name: stored_names.get(name, name) for name in in_checkpoint if name != KEY_TYPE}
    renamed = {name: state.renamed_from for name, state in states.items()}
    match = match_states(known.keys(), renamed, dropped)
    for name in (*match.unknown, *match.ambiguous):
        raise PipelineError(
            f"Step {uid!r}: the checkpoint holds state {name!r}, and the function does not say "
            "what becomes of it. Declare it, rename it with renamed_from=, or name it in "
            "dropped_states."
        )
    return RestoredNames(
        stored=assign_stored_names(states.keys(), match, known),
        in_checkpoint=match.restored,
        deleted=tuple(known[name] for name in match.dropped),
    )


def delete_rows(store: KeyValueStore, key_groups: range, stored_names: Iterable[str]) -> None:
    """Delete all rows with these names in their store keys. Raise StorageError if this fails."""
    for stored_name in stored_names:
        for group in key_groups:
            first, end = entries_span(group_part(group) + name_part(stored_name))
            while keys := [key for key, _ in islice(store.scan(first, end), DELETED_AT_ONCE)]:
                store.write((), keys)
                first = keys[-1] + b"\x00"  # skips the deleted rows in the next scan
