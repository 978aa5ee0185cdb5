"""The checks of keyed state in a restore: the steps and states of a checkpoint against the code.

The module is pure; `restore.py` calls it before anything is deployed. A checkpoint has every schema
under which its values may still be stored, also schemas of older versions of the code. A value is
written under the present schema only when its key occurs again. So the code must be able to read
all of these schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

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


def refuse_changed_steps(manifest: Manifest, plan: StateMetadata, rules: SchemaRules) -> None:
    """Refuse a plan whose steps cannot read the state of the checkpoint. RefusedError names the
    step and the state, with the remedy.
    """
    new_steps = {step.uid: step for step in plan.steps}
    for step in manifest.plan.steps:
        if step.uid not in new_steps:
            message = (
                f"checkpoint {manifest.checkpoint} holds state of a step {step.uid!r}, which the "
                f"pipeline no longer has (its keyed steps are: {_list(new_steps)}). If the step "
                f"was renamed, give it uid={step.uid!r} again; to drop all state, start with "
                "--restore none"
            )
            raise RefusedError(message)
        stored = stored_schemas(manifest, step.uid)
        new = new_steps[step.uid]
        _refuse_changed_windows(step, new)
        _refuse_changed_keys(step, new, stored, rules)
        names = {*step.states, *stored} - {KEY_TYPE}
        match = match_step(names, new)
        _refuse_unknown_states(manifest, new, match)
        _refuse_changed_states(new, match, stored, rules)


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


def _refuse_changed_windows(old: StepMetadata, new: StepMetadata) -> None:
    """Refuse windows of another kind, or with panes of other sizes: open windows could not end."""
    if old.fixed == new.fixed:
        return
    if not old.fixed or not new.fixed:
        without, having = ("checkpoint", "pipeline") if new.fixed else ("pipeline", "checkpoint")
        message = (
            f"step {old.uid!r} has windows in the {having} and none in the {without}. Restore the "
            "step, or give the new one another uid"
        )
        raise RefusedError(message)
    changed = [
        f"{name} was {old.fixed.get(name, 'not set')} and is {new.fixed.get(name, 'not set')}"
        for name in sorted({*old.fixed, *new.fixed})
        if old.fixed.get(name) != new.fixed.get(name)
    ]
    message = (
        f"step {old.uid!r}: its windows have changed in a way that open windows cannot follow: "
        f"{', '.join(changed)}. Restore the windows, or give the step another uid and start "
        "without its state. Allowed lateness, triggers, into, the size of tumbling windows and the "
        "gap of sessions may change"
    )
    raise RefusedError(message)


def _refuse_changed_keys(
    old: StepMetadata, new: StepMetadata, stored: Mapping[str, Iterable[str]], rules: SchemaRules
) -> None:
    if old.key_type != new.key_type:
        message = (
            f"step {old.uid!r} is keyed by {new.key_type}, but its state was written with keys of "
            f"type {old.key_type}: equal keys would not meet. Key it by {old.key_type} again, or "
            "give the step another uid and start without its state"
        )
        raise RefusedError(message)
    for schema in stored.get(KEY_TYPE, ()):
        if not rules.same_keys(schema, new.key_schema):
            message = (
                f"step {old.uid!r} is keyed by {new.key_type}, and the fields of this type have "
                f"changed since the checkpoint, so equal keys have other bytes. It was {schema} "
                f"and is {new.key_schema}. Restore the type, or give the step another uid"
            )
            raise RefusedError(message)


def _refuse_unknown_states(manifest: Manifest, new: StepMetadata, match: StateMatch) -> None:
    """Refuse state that the code does not declare. Otherwise the state would be lost silently, and
    a state that replaces it would begin empty.
    """
    for name in match.ambiguous:
        former = new.renamed_from[name]
        message = (
            f"step {new.uid!r}: state {name!r} is declared with renamed_from={former!r}, and "
            f"checkpoint {manifest.checkpoint} holds both names. To keep the values of {name!r}, "
            f"remove renamed_from and add dropped_states = ({former!r},) to the function class"
        )
        raise RefusedError(message)
    for name in match.unknown:
        message = (
            f"step {new.uid!r}: checkpoint {manifest.checkpoint} holds state {name!r}, and the "
            f"function declares no state of this name (it declares: {_list(new.states)}). If the "
            f"state was renamed, add renamed_from={name!r} to its declaration. To delete its "
            f"values, add dropped_states = ({name!r},) to the function class. Nothing was changed"
        )
        raise RefusedError(message)


def _refuse_changed_states(
    new: StepMetadata, match: StateMatch, stored: Mapping[str, Iterable[str]], rules: SchemaRules
) -> None:
    for state, name in match.restored.items():
        declared = new.states[state]
        for schema in stored.get(name, ()):
            conflict = rules.conflict(schema, declared)
            if conflict is not None:
                message = (
                    f"step {new.uid!r}: the values of state {state!r} in the checkpoint cannot "
                    f"all be read as its present type: {conflict}. Undo the change, give a new "
                    "field a default, or give the new type another state name"
                )
                raise RefusedError(message)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
