"""Renamed, dropped and unknown states: the match of names, and what a restore refuses."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoint.test_restore import TOTAL, checkpoint, now, plan
from tidegate.checkpoint.restore import restore
from tidegate.checkpoint.state_changes import SchemaRules
from tidegate.checkpoint.state_metadata import StepMetadata
from tidegate.checkpoint.state_names import assign_stored_names, match_states
from tidegate.errors import RefusedError

names = st.sampled_from("abcd")


@given(
    st.sets(names),
    st.dictionaries(names, names | st.just("")),
    st.sets(names),
)
def test_every_state_of_the_checkpoint_is_restored_dropped_or_unknown(
    stored: set[str], declared: dict[str, str], dropped: set[str]
) -> None:
    match = match_states(stored, declared, dropped)
    fates = [set(match.restored.values()), set(match.dropped), set(match.unknown)]
    assert set().union(*fates) == stored
    assert sum(map(len, fates)) == len(stored)
    assert set(match.restored) <= set(declared)
    assert set(match.dropped) <= dropped


@given(st.lists(st.tuples(st.sets(names, min_size=1), st.booleans()), min_size=1, max_size=6))
def test_no_two_states_ever_share_a_stored_name(history: list[tuple[set[str], bool]]) -> None:
    """Declarations change again and again; a state that takes another's place may be its rename."""
    known: dict[str, str] = {}
    for declared, renamed in history:
        gone = sorted(set(known) - declared)
        added = sorted(declared - set(known))
        formers = dict(zip(added, gone, strict=False)) if renamed else {}
        match = match_states(
            known,
            {name: formers.get(name, "") for name in declared},
            set(gone) - {*formers.values()},
        )
        assert not match.unknown
        assert not match.ambiguous
        before, known = known, assign_stored_names(sorted(declared), match, known)
        assert len(set(known.values())) == len(known) == len(declared)
        for name, former in match.restored.items():
            assert known[name] == before[former]
        for name in declared - set(match.restored):
            assert known[name] not in before.values()


def step(states: list[str], dropped: tuple[str, ...] = (), **renamed: str) -> StepMetadata:
    return StepMetadata(
        uid=TOTAL,
        key_type="str",
        states=dict.fromkeys(states, "int"),
        renamed_from=renamed,
        dropped_states=dropped,
    )


def refused(new: StepMetadata, stored: dict[str, list[str]]) -> str:
    with pytest.raises(RefusedError) as caught:
        restore(checkpoint(plan(), schemas=stored), plan(steps=(new,)), now())
    return str(caught.value)


def test_state_that_the_code_does_not_declare_is_refused_with_both_remedies() -> None:
    said = refused(step(["count"]), {"total": ["int"]})
    assert "Step 'total': checkpoint 1-1 holds state 'total'" in said
    assert "it declares: count" in said
    assert "renamed_from='total'" in said
    assert "dropped_states = ('total',)" in said


def test_undeclared_state_that_earlier_code_left_in_the_checkpoint_is_refused() -> None:
    """Earlier versions kept the rows of such a state, and a later state of its name had them."""
    assert "holds state 'seen'" in refused(step(["total"]), {"total": ["int"], "seen": ["int"]})


def test_checkpoint_with_renamed_or_dropped_states_is_restored() -> None:
    manifest = checkpoint(plan(), schemas={"total": ["int"], "": ["string"]})
    for new in (step(["count"], count="total"), step(["count"], ("total",)), step(["total"])):
        restore(manifest, plan(steps=(new,)), now())


def test_checkpoint_with_both_names_of_a_renamed_state_is_refused() -> None:
    said = refused(step(["count"], count="total"), {"total": ["int"], "count": ["int"]})
    assert "holds both names" in said
    assert "remove renamed_from and add dropped_states = ('total',)" in said


def test_a_renamed_state_is_checked_against_the_schemas_of_its_former_name() -> None:
    rules = SchemaRules(conflict=lambda old, new: None if old == new else f"{old} is no {new}")
    manifest = checkpoint(plan(), schemas={"total": ["text"]})
    with pytest.raises(RefusedError, match=r"values of state 'count' .* text is no int"):
        restore(manifest, plan(steps=(step(["count"], count="total"),)), now(), schemas=rules)


def test_manifest_of_an_earlier_version_is_read_without_renamed_states() -> None:
    old = b'{"uid": "total", "key_type": "str", "states": {"total": "x"}}'
    read = msgspec.json.decode(old, type=StepMetadata)
    assert (read.renamed_from, read.dropped_states, read.key_schema) == ({}, (), "")
