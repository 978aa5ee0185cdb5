"""The checks of keyed state in a restore: the steps and states of a checkpoint against the code.

The module is pure; `restore.py` calls it before anything is deployed. A checkpoint has every schema
under which its values may still be stored, also schemas of older versions of the code. A value is
written under the present schema only when its key occurs again. So the code must be able to read
all of these schemas.

Each check yields its refusals. A restore raises the first one, and `tidegate diff` shows all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_metadata import StateMetadata, StepMetadata
from tidegate.checkpoint.state_names import StateMatch, match_states
from tidegate.errors import RefusedError
from tidegate.ids import Uid
from tidegate.protocol.subtask_snapshot import KEY_TYPE


def _never(old: str, new: str) -> str | None:
    del old, new
    return None


def _always(old: str, new: str) -> bool:
    del old, new
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRules:
    """The rules for schemas, which `api` provides. By default every schema can read every other
    one.
    """

    conflict: Callable[[str, str], str | None] = _never
    """A function of the old and the new schema of a state. It returns the reason why the new schema
    cannot read the old one, or None.
    """
    same_keys: Callable[[str, str], bool] = _always
    """A function that tells whether keys of both schemas have the same canonical bytes."""


ANY_SCHEMA = SchemaRules()
KIND: Final = "windows"
"""The fixed part of a step that says which kind of windows it has."""


def step_refusals(
    manifest: Manifest, plan: StateMetadata, rules: SchemaRules
) -> Iterator[RefusedError]:
    """Yield the refusals of a plan whose steps cannot read the state of the checkpoint. Each one
    names the step and the state, with the remedy.
    """
    new_steps = {step.uid: step for step in plan.steps}
    for step in manifest.plan.steps:
        if step.uid not in new_steps:
            message = (
                f"Checkpoint {manifest.checkpoint} holds state of a step {step.uid!r}, which the "
                f"pipeline no longer has (its keyed steps are: {_list(new_steps)}). If the step "
                f"was renamed, give it uid={step.uid!r} again; to drop all state, start with "
                "--restore none."
            )
            yield RefusedError(message)
            continue
        stored = stored_schemas(manifest, step.uid)
        new = new_steps[step.uid]
        yield from _window_refusals(step, new)
        if _other_windows(step, new):
            continue  # its keys and states are of the other kind, and a user has declared none
        yield from _key_refusals(step, new, stored, rules)
        names = {*step.states, *stored} - {KEY_TYPE}
        match = match_step(names, new)
        yield from _unknown_state_refusals(manifest, new, match)
        yield from _schema_refusals(new, match, stored, rules)


def match_step(names: Collection[str], new: StepMetadata) -> StateMatch:
    """Match the states of a checkpoint, by name, with those that a step declares."""
    declared = {state: new.renamed_from.get(state, "") for state in new.states}
    return match_states(names, declared, new.dropped_states)


def stored_schemas(manifest: Manifest, uid: Uid) -> dict[str, list[str]]:
    """Return all schemas under which a step's values may be stored, by state name. `KEY_TYPE` has
    the schemas of the keys.
    """
    found: dict[str, list[str]] = {}
    for part in manifest.subtasks:
        for keyed in part.keyed:
            if keyed.uid == uid:
                for name, schemas in keyed.schemas.items():
                    known = found.setdefault(name, [])
                    known.extend(schema for schema in schemas if schema not in known)
    return found


def _window_refusals(old: StepMetadata, new: StepMetadata) -> Iterator[RefusedError]:
    """Refuse windows of another kind, or with panes of other sizes: open windows could not end."""
    if old.fixed == new.fixed:
        return
    if not old.fixed or not new.fixed:
        without, having = ("checkpoint", "pipeline") if new.fixed else ("pipeline", "checkpoint")
        message = (
            f"Step {old.uid!r} has windows in the {having} and none in the {without}. Restore the "
            "step, or give the new one another uid."
        )
        yield RefusedError(message)
        return
    names = [KIND] if _other_windows(old, new) else sorted({*old.fixed, *new.fixed})
    changed = [
        f"{name} was {old.fixed.get(name, 'not set')} and is {new.fixed.get(name, 'not set')}"
        for name in names
        if old.fixed.get(name) != new.fixed.get(name)
    ]
    message = (
        f"Step {old.uid!r}: its windows have changed in a way that open windows cannot follow: "
        f"{', '.join(changed)}. Restore the windows, or give the step another uid and start "
        "without its state. Allowed lateness, triggers, into, the size of tumbling windows and the "
        "gap of sessions may change."
    )
    yield RefusedError(message)


def _other_windows(old: StepMetadata, new: StepMetadata) -> bool:
    """Whether both steps have windows, and of different kinds."""
    return bool(old.fixed and new.fixed) and old.fixed.get(KIND) != new.fixed.get(KIND)


def _key_refusals(
    old: StepMetadata, new: StepMetadata, stored: Mapping[str, Iterable[str]], rules: SchemaRules
) -> Iterator[RefusedError]:
    if old.key_type != new.key_type:
        message = (
            f"Step {old.uid!r} is keyed by {new.key_type}, but its state was written with keys of "
            f"type {old.key_type}: equal keys would not meet. Key it by {old.key_type} again, or "
            "give the step another uid and start without its state."
        )
        yield RefusedError(message)
        return
    for schema in stored.get(KEY_TYPE, ()):
        if not rules.same_keys(schema, new.key_schema):
            message = (
                f"Step {old.uid!r} is keyed by {new.key_type}, and the fields of this type have "
                f"changed since the checkpoint, so equal keys have other bytes. It was {schema} "
                f"and is {new.key_schema}. Restore the type, or give the step another uid."
            )
            yield RefusedError(message)


def _unknown_state_refusals(
    manifest: Manifest, new: StepMetadata, match: StateMatch
) -> Iterator[RefusedError]:
    """Refuse state that the code does not declare. Otherwise the state would be lost silently, and
    a state that replaces it would begin empty.
    """
    for name in match.ambiguous:
        former = new.renamed_from[name]
        message = (
            f"Step {new.uid!r}: state {name!r} is declared with renamed_from={former!r}, and "
            f"checkpoint {manifest.checkpoint} holds both names. To keep the values of {name!r}, "
            f"remove renamed_from and add dropped_states = ({former!r},) to the function class."
        )
        yield RefusedError(message)
    for name in match.unknown:
        message = (
            f"Step {new.uid!r}: checkpoint {manifest.checkpoint} holds state {name!r}, and the "
            f"function declares no state of this name (it declares: {_list(new.states)}). If the "
            f"state was renamed, add renamed_from={name!r} to its declaration. To delete its "
            f"values, add dropped_states = ({name!r},) to the function class. Nothing was changed."
        )
        yield RefusedError(message)


def _schema_refusals(
    new: StepMetadata, match: StateMatch, stored: Mapping[str, Iterable[str]], rules: SchemaRules
) -> Iterator[RefusedError]:
    for state, name in match.restored.items():
        declared = new.states[state]
        for schema in stored.get(name, ()):
            conflict = rules.conflict(schema, declared)
            if conflict is not None:
                message = (
                    f"Step {new.uid!r}: the values of state {state!r} in the checkpoint cannot "
                    f"all be read as its present type: {conflict}. Undo the change, give a new "
                    "field a default, or give the new type another state name."
                )
                yield RefusedError(message)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
