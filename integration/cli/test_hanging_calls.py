"""User code that does not return, on a real broker: the status names it, and a stop kills it.

Each job hangs in one way: in Python, in C without Python's global lock, and in C with the lock. The
runs are parallel, because each of them waits for most of its time.
"""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from integration.support.running import in_time
from integration.support.user_project import Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(240)]

REPORTED_S_MAX = 30.0
"""The time within which the status names a call that does not return."""

QUICK_STOP = {"job.stop_grace_period": "1 s"}

CALLS = """
import re
import socket
import time
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


TIMER = """
class Running(KeyedProcess[str, Order, Total]):
    due = EventTimer()

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Total]:
        self.due.set(order.amount * 1000)
        return ()

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[Total]:
        if ctx.key == "c5":
            loop()
        yield Total(ctx.key, fired.at_ms)

"""
WINDOW = """
class Running(WindowProcess[str, Order, Total]):
    def process(self, orders: Sequence[Order], ctx: WindowContext[str]) -> Iterable[Total]:
        if ctx.window.key == "c5":
            loop()
        yield Total(ctx.window.key, len(orders))

"""
"""Functions whose results become due by a watermark. Those of one of seven keys hang."""


def make_timed(path: Path, kafka: EmbeddedKafka, function: str, when: str) -> Folder:
    """Make a job whose function is called for many keys by one watermark. At a drain, no watermark
    of a record is late enough.
    """
    path.mkdir()
    folder = Folder.make(path, kafka.bootstrap)
    text = (path / "job.py").read_text()
    begin, end = text.index("class Running("), text.index("class Totals(")
    text = text[:begin] + CALLS + function.lstrip() + "\n" + text[end:]
    text = text.replace("import msgspec\n", "import msgspec\n\nfrom tidegate import *\n")
    text = text.replace("Iterable\n", "Iterable, Sequence\n")
    time = "event_time=lambda order: order.amount * 1000, watermarks=BoundedOutOfOrderness('60 s')"
    text = text.replace("value=Json(Order))", f"value=Json(Order), {time})")
    if function is WINDOW:
        text = text.replace(".process(Running()", ".window(Tumbling('10 s')).process(Running()")
    (path / "job.py").write_text(text)
    folder.send_amounts(range(1, 50))
    if when == "burst":
        folder.send_amounts(range(1000, 1001))
    return folder


def test_timers_and_windows_that_hang_in_a_burst_or_a_drain_are_named_and_killed(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """Half of the jobs end by Ctrl-C, and half by `tidegate cancel` in another terminal."""
    cases = {
        ("timer", "burst"): "stop",
        ("timer", "drain"): "cancel",
        ("window", "burst"): "cancel",
        ("window", "drain"): "stop",
    }
    runs: dict[tuple[str, str], tuple[Folder, Run]] = {}
    with ExitStack() as stack:
        for what, when in cases:
            function = TIMER if what == "timer" else WINDOW
            folder = make_timed(tmp_path / f"{what}-{when}", kafka, function, when)
            run = stack.enter_context(
                folder.started("--json", bounded=when == "drain", config=QUICK_STOP)
            )
            runs[what, when] = (folder, run)
        for (what, when), (folder, run) in runs.items():
            run.until(partial(hanging, run), f"a report names the {what} at the {when}", 90.0)
            check_report(run, "loop", "running")
            found = hanging(run)
            assert found is not None
            assert f", in {'on_timer' if what == 'timer' else 'process'}\n" in found["stack"], found
            began_s = time.monotonic()
            if cases[what, when] == "cancel":
                done = folder.command("cancel", folder.job)
                assert done.code == 0, done.err
                outcome = run.wait()
            else:
                outcome = run.stop()
            assert outcome.code == (130 if cases[what, when] == "cancel" else 4), outcome.err
            in_time(time.monotonic() - began_s < REPORTED_S_MAX, "it took too long")
            last = reports(run)[-1]
            if cases[what, when] == "cancel":
                assert last["state"] == "CANCELED", last
            else:
                assert last["stopped"] == "without_checkpoint", last
