"""Changes of a job's declared state between two runs, with the user's command on a real broker.

Each run is `tidegate run --bounded` on the same checkpoint storage. A change that would lose state
is refused with exit code 2, and the error names both remedies. After the remedy the job continues,
and its output is exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.support.user_project import Folder, Outcome, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

TOTAL = "total = ValueState(int, default=0)"
CUSTOMERS = ("ann", "bob", "eve", "joe")


def spend(folder: Folder, amount: int) -> None:
    """Write one order of each customer."""
    records: list[tuple[bytes | None, bytes | None]] = [
        (name.encode(), json.dumps({"customer": name, "amount": amount}).encode())
        for name in CUSTOMERS
    ]
    folder.send("orders", records)


def totals(folder: Folder) -> set[int]:
    """Return the set of the customers' newest totals."""
    newest: dict[str, int] = {}
    for message in folder.read("totals"):
        value = json.loads(message.value() or b"")
        newest[value["customer"]] = value["total"]
    assert set(newest) == set(CUSTOMERS)
    return set(newest.values())


@pytest.mark.once
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_a_renamed_state_is_refused_and_goes_on_with_renamed_from(
    kafka: EmbeddedKafka, tmp_path: Path, backend: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    text = (folder.path / "job.py").read_text()
    config = {"state.backend": backend}

    def run(declared: str, amount: int, *options: str) -> Outcome:
        """Run code whose last declared state holds the totals."""
        state = declared.rsplit("\n", 1)[-1].split("=", 1)[0].strip()
        changed = text.replace(TOTAL, declared).replace("self.total.", f"self.{state}.")
        folder.write("job.py", changed)
        if amount:
            spend(folder, amount)
        return folder.run(*options, config=config)

    assert run(TOTAL, 100, "-p", "2").code == 0
    assert totals(folder) == {100}

    # An earlier version started without state: the totals were 100, then 1, with exit code 0.
    read = len(folder.read("totals"))
    refused = run("count = ValueState(int, default=0)", 1, "-p", "2")
    assert refused.code == 2, refused.err
    said = paragraph(refused.err)
    for words in ("holds state 'total'", "renamed_from='total'", "dropped_states = ('total',)"):
        assert words in said
    assert len(folder.read("totals")) == read

    renamed = 'count = ValueState(int, default=0, renamed_from="total")'
    assert run(renamed, 0, "-p", "1").code == 0  # another parallelism; it reads the waiting orders
    assert totals(folder) == {101}
    assert run(renamed, 1, "-p", "2").code == 0
    assert run("count = ValueState(int, default=0)", 1, "-p", "2").code == 0
    assert totals(folder) == {103}

    # The state is dropped. A later state of the same name starts empty.
    dropped = 'dropped_states = ("count",)\n    fresh = ValueState(int, default=0)'
    assert run(dropped, 1, "-p", "1").code == 0
    assert totals(folder) == {1}
    back = "fresh = ValueState(int, default=0)\n    count = ValueState(int, default=0)"
    assert run(back, 5, "-p", "2").code == 0
    assert totals(folder) == {5}


NARROWED: dict[str, Callable[[str], str]] = {
    "narrowed Literal": lambda text: text.replace("'silver', ", ""),
    "int to float": lambda text: text.replace(
        "ValueState(int, default=0)", "ValueState(float, default=0.0)"
    ),
}

LEVELS = (
    TOTAL
    + """
    level = ValueState(Literal['gold', 'silver', 'none'], default='none')"""
)


@pytest.mark.slow
@pytest.mark.parametrize("change", NARROWED)
def test_a_type_that_cannot_read_every_stored_value_is_refused_at_submit(
    kafka: EmbeddedKafka, tmp_path: Path, change: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit("job.py", "import Iterable\n", "import Iterable\nfrom typing import Literal\n")
    folder.edit("job.py", TOTAL, LEVELS)
    # No stored level is 'silver', but the declared type allows 'silver'.
    folder.edit("job.py", "        yield", "        self.level.value = 'gold'\n        yield")
    text = (folder.path / "job.py").read_text()
    spend(folder, 2**53)
    assert folder.run().code == 0
    spend(folder, 1)
    folder.write("job.py", NARROWED[change](text))
    refused = folder.run()
    assert refused.code == 2, refused.err
    assert "cannot all be read as its present type" in paragraph(refused.err)
    assert totals(folder) == {2**53}
    folder.write("job.py", text)
    assert folder.run().code == 0
    assert totals(folder) == {2**53 + 1}
