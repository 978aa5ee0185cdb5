"""User code that does not return, on a real broker: the status names it, and a stop kills it.

Each job hangs in one way: in Python, in C without Python's global lock, and in C with the lock. The
runs are parallel, because each of them waits for most of its time.
"""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.support.user_project import Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

REPORTED_S_MAX = 30.0
"""The time within which the status names a call that does not return."""

QUICK_STOP = {"job.stop_grace_period": "1 s"}

CALLS = """
import re
import socket
import time


def loop() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(1e9)


def read() -> None:
    socket.create_connection(("127.0.0.1", {port})).recv(1)


def match() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")

"""
"""The ways to hang. The last one keeps Python's global lock."""


def in_map(call: str) -> str:
    """Return a pipeline whose first step, which runs with the source, hangs on amount 13."""
    return f"""
def checked(order: Order) -> Order:
    if order.amount == 13:
        {call}()
    return order


class Totals("""


@contextmanager
def silent_server() -> Iterator[int]:
    """Run a server that never sends anything, and return its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def make(path: Path, kafka: EmbeddedKafka, call: str, where: str, port: int) -> Folder:
    path.mkdir()
    folder = Folder.make(path, kafka.bootstrap, partitions=2)
    folder.edit("job.py", "class Order(", CALLS.replace("{port}", str(port)) + "\nclass Order(")
    if where == "map":
        folder.edit("job.py", "class Totals(", in_map(call).lstrip())
        folder.edit("job.py", "self.orders.key_by", "self.orders.map(checked).key_by")
    else:
        hangs = f"        if order.amount == 13:\n            {call}()\n"
        folder.edit("job.py", "        self.total.value +=", hangs + "        self.total.value +=")
    folder.orders(30)
    folder.send("orders", [(b"c1", b'{"customer": "c1", "amount": 13}')])
    return folder


def reports(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.out.splitlines() if line.endswith("}")]


CASES = {
    ("loop", "map"): "map-1",
    ("sleep", "process"): "running",
    ("read", "map"): "map-1",
    ("match", "process"): "running",
}
"""The call that hangs and its step, with the name of the step in reports."""


def hanging(run: Run) -> dict[str, Any] | None:
    """Return the call that the last reports of a run name."""
    for report in reports(run):
        if report.get("hanging_calls"):
            found: dict[str, Any] = report["hanging_calls"][0]
            return found
    return None


def test_status_names_each_call_that_does_not_return_and_a_stop_kills_it(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """After the stop the code is corrected, and the next run writes every total exactly once."""
    runs: dict[tuple[str, str], tuple[Folder, Run]] = {}
    with ExitStack() as stack:
        port = stack.enter_context(silent_server())
        for call, where in CASES:
            folder = make(tmp_path / f"{call}-{where}", kafka, call, where, port)
            run = stack.enter_context(
                folder.started("-p", "2", "--json", bounded=False, config=QUICK_STOP)
            )
            runs[call, where] = (folder, run)
        for (call, _), (_, run) in runs.items():
            run.until(partial(hanging, run), f"a report names {call}", 60.0)
        for (call, where), (_, run) in runs.items():
            check_report(run, call, CASES[call, where])
            outcome = run.stop()
            assert outcome.code == 4, outcome.err
            last = reports(run)[-1]
            assert last["stopped"] == "without_checkpoint", last
    folder, _ = runs["match", "process"]
    folder.edit("job.py", "            match()", "            pass")
    assert folder.run("-p", "2").code == 0
    totals = [json.loads(message.value() or b"") for message in folder.read("totals")]
    of_customer = [total["total"] for total in totals if total["customer"] == "c1"]
    assert of_customer == [*range(1, 11), 23]
    assert len(totals) == 31


def check_report(run: Run, call: str, step: str) -> None:
    found = hanging(run)
    assert found is not None
    assert found["step"] == step, found
    assert f", in {call}\n" in found["stack"] + "\n", found["stack"]
    first = next(report for report in reports(run) if report.get("hanging_calls"))
    waited_s = (first["reported_ms"] - found["since_ms"]) / 1000
    assert waited_s < REPORTED_S_MAX
