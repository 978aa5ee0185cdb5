"""The storage that fails on purpose follows its rules, and changes nothing else.

The tests use the real local store. They check that the store holds each write that a rule lets
through.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.faults.kill_matrix.faulty_storage import (
    FOLDER,
    Does,
    FailingStore,
    Rule,
    Rules,
    failing,
)
from tidegate.drivers.storage.local import LocalStore
from tidegate.errors import StorageError
from tidegate.ports.blobs import CreateResult

ENTRY = "job/journal/00001.json"


@pytest.fixture
def real(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rules:
    made = Rules(tmp_path / "rules")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_failing_store_without_rules_behaves_like_the_real_store(
    real: LocalStore, rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = failing(real, "slot")
    assert store.create(ENTRY, b"1") is CreateResult.CREATED
    store.put("job/a", b"2")
    assert (store.get(ENTRY), store.get("job/a"), store.list("job/journal")) == (
        b"1",
        b"2",
        [ENTRY],
    )
    assert rules.met() == []
    monkeypatch.delenv(FOLDER)
    assert failing(real, "slot") is real


@pytest.mark.parametrize(("does", "there"), [("silent", None), ("unheard", b"1")])
def test_failing_store_hides_the_result_of_a_create(
    real: LocalStore, rules: Rules, does: Does, there: bytes | None
) -> None:
    store = FailingStore(real, "jobmaster")
    rules.set(Rule(does=does, call="create", path="/journal/", times=1))
    assert store.create("job/other", b"0") is CreateResult.CREATED
    assert store.create(ENTRY, b"1") is CreateResult.UNKNOWN
    assert real.get(ENTRY) == there
    assert store.create(ENTRY, b"1") is (CreateResult.EXISTS if there else CreateResult.CREATED)
    assert [(each["role"], each["call"], each["path"]) for each in rules.met()] == [
        ("jobmaster", "create", ENTRY)
    ]


def test_failing_store_fails_a_put_before_it_writes_and_only_while_its_rule_is_set(
    real: LocalStore, rules: Rules
) -> None:
    store = FailingStore(real, "slot")
    rules.set(Rule(does="fail", call="put", role="slot"))
    with pytest.raises(StorageError, match="Input/output error"):
        store.put("job/a", b"1")
    assert real.get("job/a") is None
    FailingStore(real, "jobmaster").put("job/b", b"2")
    rules.set()
    store.put("job/a", b"1")
    assert (real.get("job/a"), real.get("job/b"), rules.met()) == (b"1", b"2", [])


def test_times_limit_of_a_rule_counts_for_all_stores_together(
    real: LocalStore, rules: Rules
) -> None:
    first, second = FailingStore(real, "slot"), FailingStore(real, "slot")
    rules.set(Rule(does="fail", call="get", times=2))
    for store in (first, second):
        with pytest.raises(StorageError):
            store.get("job/a")
    assert first.get("job/a") is None
    assert len(rules.met()) == 2
