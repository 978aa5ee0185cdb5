"""`tidegate dev` as a user sees it: saves, errors, changed state, records, and nothing left behind.

One session uses the brokers of the settings. Two sessions start a broker of their own: one ends by
Ctrl-C and the other by SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from integration.support.brokers import produce, unique
from integration.support.running import TooLateError, await_gone
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
WAIT_S = 240.0
"""A limit for a busy machine. A step takes about five seconds on an idle one."""


class Dev:
    """A running `tidegate dev`, and all that it has printed."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.folder, self.process, self._output = folder, process, output
        self._seen = 0

    def until(self, *texts: str) -> str:
        """Wait until the texts were printed, in this order, after those of the last call. Return
        what was printed.
        """
        end_s = time.monotonic() + WAIT_S
        while True:
            text = self._output.read_text(errors="replace")
            new = text[self._seen :]
            end = 0
            for each in texts:
                at = new.find(each, end)
                end = -1 if at < 0 else at + len(each)
                if at < 0:
                    break
            if end >= 0:
                self._seen += end
                return new
            if self.process.poll() is not None:
                raise AssertionError(f"It ended before it wrote {texts}:\n{text}")
            if time.monotonic() > end_s:
                raise TooLateError(f"{texts} did not come:\n{text}")
            time.sleep(0.05)

    def type(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def edit(self, old: str, new: str) -> None:
        """Save the pipeline with a change, as an editor does: in one step."""
        path = self.folder / "shop" / "pipeline.py"
        text = path.read_text()
        assert old in text
        saved = path.with_suffix(".new")
        saved.write_text(text.replace(old, new))
        saved.replace(path)

    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    def below(self) -> set[int]:
        return {each.pid for each in psutil.Process(self.process.pid).children(recursive=True)}


@contextmanager
def started(folder: Path, *options: str) -> Iterator[Dev]:
    output = folder.parent / unique("output")
    with output.open("wb") as file:
        process = subprocess.Popen(
            [TIDEGATE, "dev", *options],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    session = Dev(folder, process, output)
    try:
        yield session
    finally:
        left: set[int] = set()
        if process.poll() is None:
            left = session.below()
            process.kill()
        process.communicate()
        assert not await_gone(left), session._output.read_text()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run([TIDEGATE, "new", "shop"], cwd=tmp_path, check=True, capture_output=True)
    folder = tmp_path / "shop"
    with (folder / "tidegate.toml").open("a") as file:
        file.write(f'[sources.orders]\ntopic = "{unique("orders")}"\n')
        file.write(f'[sinks.totals]\ntopic = "{unique("totals")}"\n')
    text = (folder / "tidegate.toml").read_text()
    (folder / "tidegate.toml").write_text(text.replace('"5 s"', '"300 ms"'))
    pipeline = folder / "shop" / "pipeline.py"
    pipeline.write_text(pipeline.read_text().replace('name="shop"', f'name="{unique("shop")}"'))
    return folder


def topic(folder: Path, name: str) -> str:
    text = (folder / "tidegate.toml").read_text()
    return next(line.split('"')[1] for line in text.splitlines() if f'topic = "{name}-' in line)


def send(bootstrap: str, folder: Path, *amounts: str) -> None:
    orders = [json.dumps({"customer_id": "ann", "amount": each}).encode() for each in amounts]
    produce(bootstrap, topic(folder, "orders"), [(None, order) for order in orders])


def test_saves_restart_the_job_from_its_checkpoint_and_errors_do_not_end_it(
    kafka: EmbeddedKafka, project: Path
) -> None:
    name = unique("renamed")
    with started(project, "--kafka", kafka.bootstrap, "--as", name) as dev:
        dev.until("created topics", "started the job", "showing records of")
        send(kafka.bootstrap, project, "5")
        dev.until(f"in  {topic(project, 'orders')}: ", '"total":"5"')

        dev.edit("class OrderTotals", "def (\nclass OrderTotals")
        dev.until("saved: shop/pipeline.py", "SyntaxError", "continues with the code before")
        send(kafka.bootstrap, project, "2")
        dev.until('"total":"7"')

        dev.edit("def (\nclass OrderTotals", "class OrderTotals")
        dev.until("stopped with a final checkpoint", "started the job", ": running")
        dev.edit("+= order.amount", "+= order.amount * 10")
        dev.until("stopped with a final checkpoint", "started the job", "showing records of")
        send(kafka.bootstrap, project, "1")
        dev.until('"total":"17"')

        dev.edit('uid="running-total"', 'uid="sums"')
        dev.until("Refused", "holds state of a step 'running-total'", "type d and Enter")
        assert dev.process.poll() is None
        send(kafka.bootstrap, project, "1")
        dev.until('"total":"27"')
        dev.type("d")
        # The new code reads the input again, without the state, and its sum is ten times as large.
        dev.until("stopped with a final checkpoint", "started the job", '"total":"90"')

        below = dev.below()
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(WAIT_S) == 0
        assert not await_gone(below)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    assert topic(project, "orders") in admin.list_topics(timeout=10).topics
    assert (project / ".tidegate" / "checkpoints" / name).is_dir()


def left_in(project: Path) -> list[str]:
    """Return what a session has left, other than locks and the folder of sockets."""
    kept = {"dev.lock", "runs", "lock"}
    left = (project / ".tidegate").rglob("*")
    return [str(path) for path in left if path.name not in kept]


@pytest.mark.slow
def test_session_with_its_own_broker_leaves_nothing_after_ctrl_c(project: Path) -> None:
    with started(project) as dev:
        text = dev.until("started the job", "showing records of")
        bootstrap = text.split("on Kafka at ")[1].split()[0]
        send(bootstrap, project, "5")
        dev.until('"total":"5"')
        second = subprocess.run(
            [TIDEGATE, "dev"], cwd=project, capture_output=True, text=True, check=False
        )
        assert second.returncode == 2
        assert f"Process {dev.process.pid} already runs" in second.stderr
        below = dev.below()
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(WAIT_S) == 0
        assert not await_gone(below)
    assert left_in(project) == []


@pytest.mark.slow
def test_json_has_one_object_for_each_event_of_a_session(
    kafka: EmbeddedKafka, project: Path
) -> None:
    """Text that user code prints, and errors of the run, are fields of events too."""
    source = "self.total.value += order.amount\n"
    with started(project, "--json", "--kafka", kafka.bootstrap) as dev:
        dev.until('"job_started"', '"showing_records"')
        dev.edit(source, f'{source}        print("seen", order.amount, flush=True)\n')
        dev.until('"job_stopping"', '"job_restarted"', '"showing_records"', '"state": "RUNNING"')
        send(kafka.bootstrap, project, "5")
        dev.until('"event":"record"', '"direction":"out"')
        dev.edit("class OrderTotals", "def (\nclass OrderTotals")
        dev.until('"code_refused"')
        dev.edit("def (\nclass OrderTotals", "class OrderTotals")
        dev.until('"job_restarted"', '"showing_records"', '"state": "RUNNING"')
        send(kafka.bootstrap, project, "no amount")
        dev.until('"job_failed"')
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(WAIT_S) == 0
        lines = [json.loads(line) for line in dev.printed().splitlines()]
    by_name: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        by_name.setdefault(line["event"], []).append(line)
    assert [lines[0]["event"], lines[-1]["event"]] == ["session_started", "session_stopped"]
    assert lines[0]["kafka"] == kafka.bootstrap
    assert [each["files"] for each in by_name["file_saved"]] == [["shop/pipeline.py"]] * 3
    shown = [(each["direction"], each["value"]) for each in by_name["record"]]
    assert ("in", {"customer_id": "ann", "amount": "5"}) in shown
    assert ("out", {"customer_id": "ann", "total": "5"}) in shown
    assert any("seen 5" in each["text"] for each in by_name["job_output"])
    (problem,), (refused,) = by_name["problem"], by_name["code_refused"]
    assert "SyntaxError" in problem["text"]
    assert (refused["reason"], refused["job_continues"]) == ("code", True)
    assert by_name["job_failed"][0]["exit_code"] == 1
    assert "cannot decode the record" in by_name["end"][-1]["error"]["message"]


@pytest.mark.slow
def test_session_that_is_killed_leaves_no_process_and_no_data(project: Path) -> None:
    with started(project) as dev:
        dev.until("started the job", ": running")
        below = dev.below()
        assert len(below) > 5
        os.kill(dev.process.pid, signal.SIGKILL)
        assert not await_gone(below)
    assert left_in(project) == []
