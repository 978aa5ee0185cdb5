"""Which stored rows belong to which declared state, when states are renamed, dropped and added.

A state's rows are stored under a name that is part of their store keys. That stored name never
changes: a renamed state goes on with the rows that it has, and no record pays for it. The
checkpoint keeps the stored names that differ from the state's name, so `renamed_from=` may be
removed once a checkpoint with the new name exists.

Pure. The JobMaster asks `match_states` before it deploys (`state_changes.py`), and each slot when
it opens the state: both get the same answer from the same checkpoint and the same code, and so do
all subtasks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMatch:
    """The states of a checkpoint against the declared ones."""

    restored: dict[str, str]
    """Declared name to the name in the checkpoint, of the states that the checkpoint has."""
    dropped: tuple[str, ...]
    """Names in the checkpoint whose rows are deleted, because the code says so."""
    unknown: tuple[str, ...]
    """Names in the checkpoint that the code neither declares nor drops: the restore is refused."""
    ambiguous: tuple[str, ...]
    """Declared names that the checkpoint has under the new name and under the former one."""


def match_states(
    in_checkpoint: Collection[str], renamed_from: Mapping[str, str], dropped: Collection[str]
) -> StateMatch:
    """Match the names in a checkpoint; `renamed_from` has every declared name, with its former name
    or the empty string.

    A state that the checkpoint has under its present name was renamed before, so its former name
    does not count any more.
    """
    restored, ambiguous = {}, []
    for name, former in renamed_from.items():
        if name in in_checkpoint:
            restored[name] = name
            if former in in_checkpoint and former not in dropped:
                ambiguous.append(name)
        elif former in in_checkpoint:
            restored[name] = former
    taken = set(restored.values())
    gone = [name for name in sorted(in_checkpoint) if name not in taken]
    return StateMatch(
        restored=restored,
        dropped=tuple(name for name in gone if name in dropped),
        unknown=tuple(name for name in gone if name not in dropped),
        ambiguous=tuple(ambiguous),
    )


def assign_stored_names(
    declared: Collection[str], match: StateMatch, known: Mapping[str, str]
) -> dict[str, str]:
    """The name in store keys of each declared state; `known` are those that the checkpoint has, by
    name in the checkpoint.

    A restored state keeps its stored name. A new one takes its own name, or where another state's
    rows have that name, the name with a number behind "#", which no attribute's name holds.
    """
    stored = {name: known[former] for name, former in match.restored.items()}
    used = set(known.values())
    for name in declared:
        if name not in stored:
            stored[name] = _unused(name, used)
            used.add(stored[name])
    return {name: stored[name] for name in declared}


def _unused(name: str, used: Collection[str]) -> str:
    number, candidate = 1, name
    while candidate in used:
        number += 1
        candidate = f"{name}#{number}"
    return candidate
