"""No room of the package imports a room above it, and no rooms import each other in a circle.

`draw_rooms.py` finds the imports. Unlike import-linter, it also sees those by name. The tests plant
an import of each kind that it must find. The drawing in ARCHITECTURE.md must be the present one.
"""

from __future__ import annotations

import pytest

from tests.repository.draw_rooms import (
    PACKAGE,
    PAGE,
    Import,
    circles,
    drawing,
    drawn,
    imports,
    layers,
    named_modules,
    upward_arrows,
    with_drawing,
)

UPWARD = [
    ("tidegate", "tidegate.api.x", "tidegate.cli.scripts.script_run"),
    ("tidegate", "tidegate.drivers.rpc.x", "tidegate.slot.main"),
    ("tidegate", "tidegate.errors", "tidegate.ports.x"),
    ("tidegate.dataplane", "tidegate.dataplane.time.x", "tidegate.dataplane.state.x"),
    ("tidegate.controlplane", "tidegate.controlplane.client.x", "tidegate.controlplane.jobmaster"),
]
ROUND = [
    ("tidegate.dataplane.x", "tidegate.drivers.x", "tidegate"),
    ("tidegate.drivers.kafka.x", "tidegate.drivers.system", "tidegate.drivers"),
    ("tidegate.commit.journal.x", "tidegate.commit.claim", "tidegate.commit"),
]


@pytest.mark.parametrize("package", layers())
def test_no_import_runs_from_a_room_to_one_above_it(package: str) -> None:
    assert not list(upward_arrows(imports(), package))


@pytest.mark.parametrize(("package", "module", "imported"), UPWARD)
def test_an_import_of_a_room_above_is_reported(package: str, module: str, imported: str) -> None:
    (found,) = upward_arrows({*imports(), (module, imported)}, package)
    assert f"{module} -> {imported}" in found


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert not list(circles(imports()))


@pytest.mark.parametrize(("module", "imported", "package"), ROUND)
def test_a_circle_of_rooms_is_reported_with_its_imports(
    module: str, imported: str, package: str
) -> None:
    (found,) = circles({*imports(), (module, imported)})
    assert found.startswith(f"{package}: ")
    assert f"{module} -> {imported}" in found


def test_imports_in_functions_and_by_name_count_and_those_for_type_checkers_do_not() -> None:
    assert ("tidegate.role", "tidegate.bootstrap") in imports()  # in a function
    assert ("tidegate.bootstrap", "tidegate.slot.main") in imports()  # by name
    text = 'import_module("tidegate.a"); MAIN = "tidegate.b:run"; START = "tidegate.role"'
    assert named_modules(text, {"tidegate.a", "tidegate.b", "tidegate.c", "tidegate.role"}) == {
        *("tidegate.a", "tidegate.b")
    }
    assert ("tidegate", "tidegate.api.records.formats") not in imports()  # for type checkers


def test_the_order_of_the_rooms_is_that_of_the_import_contracts() -> None:
    order = layers()[PACKAGE]
    assert order[0][0] == "cli"
    assert order[-2] == ["ports"]
    assert {"config", ":", "ids"} < set(order[-1])
    assert {room for layer in order for room in layer} - {":"} == {
        name.split(".")[1] for each in imports() for name in each if name != PACKAGE
    }


ORDER = [["top"], ["left", "right"], ["b", ":", "a"]]
TOY: list[Import] = [
    ("tidegate.top.x", "tidegate.left"),
    ("tidegate.top.x", "tidegate.a"),  # follows from the arrows before and after it
    ("tidegate.left", "tidegate.b"),
    ("tidegate.a", "tidegate.b"),
]


def test_drawing_has_a_box_for_each_room_and_only_the_arrows_that_do_not_follow_from_others() -> (
    None
):
    assert drawing(TOY, ORDER).splitlines()[2:-1] == [
        '  top_["top"]',
        '  left_["left"]',
        '  right_["right"]',
        '  shared_["a<br>b"]',
        "  top_ --> left_",
        "  left_ --> shared_",
    ]
    page = with_drawing(PAGE.read_text(encoding="utf-8"), "new")
    assert drawn(page) == "new"
    assert with_drawing(page, drawn(PAGE.read_text(encoding="utf-8"))) == PAGE.read_text(
        encoding="utf-8"
    )


def test_drawing_in_the_architecture_page_is_the_present_one() -> None:
    new = drawing(imports(), layers()[PACKAGE])
    assert drawn(PAGE.read_text(encoding="utf-8")) == new, (
        "run `python -m tests.repository.draw_rooms`"
    )
