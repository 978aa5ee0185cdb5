"""Values that user code puts into state, on a real broker.

A sum beyond 64 bits stays exact. A value that no checkpoint can store ends the job; with a policy,
the job refuses only the record that made it.
"""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from integration.connectors.test_bad_records import header, publishing
from integration.support.user_project import TOTALS, Folder, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

AMOUNT = 2**62
CUSTOMERS = 3


def spend(folder: Folder, each: int) -> None:
    """Write `each` orders of each customer."""
    records: list[tuple[bytes | None, bytes | None]] = [
        (f"c{c}".encode(), json.dumps({"customer": f"c{c}", "amount": AMOUNT}).encode())
        for _ in range(each)
        for c in range(CUSTOMERS)
    ]
    folder.send("orders", records)


def assert_sums(folder: Folder, each: int) -> None:
    found: dict[str, list[int]] = {}
    for message in folder.read("totals"):
        total = json.loads(message.value() or b"")
        found.setdefault(total["customer"], []).append(total["total"])
    due = [AMOUNT * n for n in range(1, each + 1)]
    assert found == {f"c{c}": due for c in range(CUSTOMERS)}


@pytest.mark.once
@pytest.mark.parametrize("backend", ["rocksdb", "memory"])
def test_a_sum_beyond_64_bits_is_exact_through_a_kill_and_a_restore(
    kafka: EmbeddedKafka, tmp_path: Path, backend: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, partitions=2)
    config = {"state.backend": backend}
    spend(folder, 6)  # from the fourth order of a customer on, the sum needs more than 64 bits
    with folder.started("-p", "2", bounded=False, config=config) as run:
        run.until(lambda: len(folder.read("totals")) >= 6 * CUSTOMERS, "with the first sums", 90)
        killed = run.until(partial(publishing, folder, 0), "publishing", 60)
        os.kill(run.until(run.slots, "with slots")[0], signal.SIGKILL)
        spend(folder, 4)
        run.until(lambda: len(folder.read("totals")) >= 10 * CUSTOMERS, "with all sums", 90)
        outcome = run.stop()
    assert killed
    assert outcome.code == 0, outcome.err
    spend(folder, 2)
    assert folder.run("-p", "1", config=config).code == 0  # with another parallelism
    assert_sums(folder, 12)


TEXT = "        self.total.value += order.amount\n"
WRITES_TEXT = f"""{TEXT}        if order.amount == 7:
            yield Total(ctx.key, 7)  # a result of the declared type
            self.total.value = 'seven'
            return
"""


@pytest.mark.slow
def test_unstorable_state_value_fails_the_job_without_a_restart_and_names_its_key(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, TOTALS.replace(TEXT, WRITES_TEXT))
    folder.send("orders", [(b"c", b'{"customer": "ann", "amount": 7}')])
    outcome = folder.run("--json")  # the default restart strategy has no limit of restarts
    assert outcome.code == 1, outcome.err
    said = " ".join(outcome.err.split())
    assert "State 'total' of step 'running' cannot be stored for key 'ann'" in said
    assert "it is a str, not an int" in said
    report = json.loads(outcome.out.splitlines()[-1])
    assert report["restarts"] == 0
    # No wrong value was stored, so the job continues from its checkpoint with corrected code.
    folder.write("job.py", TOTALS)
    assert folder.run().code == 0
    assert [json.loads(each.value() or b"")["total"] for each in folder.read("totals")] == [7]


@pytest.mark.slow
def test_policy_refuses_the_record_that_made_an_unstorable_state_value(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    text = TOTALS.replace(TEXT, WRITES_TEXT).replace(
        'uid="running"', 'uid="running", on_error="dead_letter", dead_letter_topic="{dead}"'
    )
    folder = Folder.make(tmp_path, kafka.bootstrap, text, topics=("orders", "totals", "dead"))
    orders = [b'{"customer": "ann", "amount": %d}' % amount for amount in (1, 7, 2)]
    folder.send("orders", [(b"c", order) for order in orders])
    outcome = folder.run()
    assert outcome.code == 0, paragraph(outcome.err)
    assert [json.loads(each.value() or b"")["total"] for each in folder.read("totals")] == [1, 3]
    (letter,) = folder.read("dead")
    assert letter.value() == orders[1].replace(b" ", b"")
    assert header(letter, "error").startswith("StateValueError: state 'total' cannot be stored")
