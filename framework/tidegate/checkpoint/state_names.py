"""The match between stored rows and declared states, when states are renamed, dropped and added.

The rows of a state are stored under a name that is part of their store keys. That stored name never
changes. A renamed state keeps its rows, and the rename costs nothing per record. The checkpoint
keeps the stored names that differ from the state's name. So `renamed_from=` may be removed once a
checkpoint with the new name exists.

The module is pure. The JobMaster calls `match_states` before it deploys (`state_changes.py`), and
each slot calls it when it opens the state. All of them get the same result, because they use the
same checkpoint and the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateMatch:
    """The states of a checkpoint, compared with the declared ones."""

    restored: dict[str, str]
    """Per declared name of a state that the checkpoint has: its name in the checkpoint."""
    dropped: tuple[str, ...]
    """Names in the checkpoint whose rows are deleted, because the code declares them as dropped."""
    unknown: tuple[str, ...]
    """Names in the checkpoint that the code neither declares nor drops. The restore is refused."""
    ambiguous: tuple[str, ...]
    """Declared names that the checkpoint has both under the new name and under the former one."""


def match_states(
    in_checkpoint: Collection[str], renamed_from: Mapping[str, str], dropped: Collection[str]
) -> StateMatch:
    """Match the names in a checkpoint with the declared ones. `renamed_from` has every declared
    name, with its former name or the empty string.

    If the checkpoint has a state under its present name, the rename happened before that
    checkpoint, and the former name is ignored. The match is ambiguous if the checkpoint also has a
    state under the former name and the code does not drop it.
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
    """Return the name in store keys of each declared state. `known` has the stored names of the
    checkpoint's states, by name in the checkpoint.

    A restored state keeps its stored name. A new state takes its own name. If rows of another state
    have that name, the new state gets the name with "#" and a number, which no attribute name
    contains.
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
