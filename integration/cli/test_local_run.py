"""A local run as its user sees it: in its terminal, in another terminal, and at an early Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from integration.support.brokers import Kafka, unique
from integration.support.user_project import TOTALS, Folder

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
PRINTING = TOTALS.replace(
    "        self.total.value +=",
    '        print("seen", order.customer)\n        self.total.value +=',
).replace("class Order(", 'print("imported")\n\n\nclass Order(')


def command(folder: Folder, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [TIDEGATE, *arguments], cwd=folder.path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def state_of(folder: Folder) -> Any:
    return json.loads(command(folder, "list", "--json"))["jobs"][0]


def test_run_is_seen_and_stopped_from_another_terminal(kafka: Kafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, PRINTING, partitions=2)
    keeps = {"checkpoint.num_retained": "100"}
    with folder.started("-p", "2", bounded=False, config=keeps) as run:
        run.until((tmp_path / ".tidegate/runs").exists, "listening")
        run.until(lambda: "checkpoint" in command(folder, "status", folder.job), "a checkpoint")
        folder.orders(9)
        run.until(lambda: state_of(folder)["records_in"] == 9, "read")
        assert state_of(folder)["local_run_pid"] == run.process.pid
        rows = json.loads(command(folder, "status", folder.job, "--json"))["processes"]
        roles = ["JobManager", "JobMaster", "TaskManager", "slot", "slot"]
        assert [row["role"] for row in rows] == roles
        titles = [Path(f"/proc/{row['pid']}/cmdline").read_bytes().decode() for row in rows]
        assert all(role.lower() in title for role, title in zip(roles, titles, strict=True)), titles
        assert {row["host"] for row in rows} == {socket.gethostname()}
        assert f"{folder.job}: running" in command(folder, "list")
        assert "stopped with a final checkpoint" in command(folder, "stop", folder.job)
        outcome = run.wait()
    assert outcome.code == 0
    assert not list((tmp_path / ".tidegate/runs").glob("*.sock"))
    printed = [line for line in outcome.out.splitlines() if "seen" in line]
    assert len(printed) == 9
    assert all(re.fullmatch(r"\[subtask [01]\] seen c[012]", line) for line in printed)
    assert re.search(r"9 records in, 9 out in [\d.]+ s, \d+ checkpoints", outcome.err)
    folder.assert_exact(9)
    rows = json.loads(command(folder, "checkpoints", folder.job, "--json"))["checkpoints"]
    assert rows[-1]["final"]
    assert rows[-1]["parallelism"] == 2
    assert rows[-1]["duration_ms"] > 0
    assert sum(split["offset"] for split in rows[-1]["offsets"]) >= 9
    for row in (rows[0], rows[-1]):  # what is listed can be restored
        assert folder.run("--restore", row["id"], "--no-drain", config=keeps).code == 0


@pytest.mark.slow
def test_text_of_user_code_does_not_break_json_lines(kafka: Kafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, PRINTING)
    folder.orders(3)
    outcome = folder.run("--json")
    assert outcome.code == 0, outcome.err
    assert [json.loads(line)["event"] for line in outcome.out.splitlines()][-1] == "end"
    assert outcome.err.count("[subtask 0] seen c0") == 1
    assert "\nimported\n" in f"\n{outcome.err}"


@pytest.mark.slow
def test_pipeline_that_prints_much_leaves_two_small_files_for_each_subtask(
    kafka: Kafka, tmp_path: Path
) -> None:
    much = '"x" * 200)\n        print("warned", file=__import__("sys").stderr)'
    folder = Folder.make(
        tmp_path, kafka.bootstrap, PRINTING.replace("order.customer)", f"order.customer, {much}", 1)
    )
    folder.orders(3000)
    outcome = folder.run(config={"logs.max_file_size": "64 KiB"})
    assert outcome.code == 0, outcome.err
    folder.assert_exact(3000)
    logs = tmp_path / ".tidegate/logs" / folder.job
    assert (logs / "subtask-0.out.1").exists()
    assert (logs / "subtask-0.out").read_text().endswith(f"seen c2 {'x' * 200}\n")
    assert max(path.stat().st_size for path in logs.glob("s*")) <= 64 << 10


@pytest.mark.slow
def test_print_on_a_full_disk_does_not_fail_the_job(kafka: Kafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, PRINTING)
    folder.orders(9)
    output = tmp_path / ".tidegate/logs" / folder.job / "subtask-0.out"
    output.parent.mkdir(parents=True)
    output.symlink_to("/dev/full")
    outcome = folder.run("--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out.splitlines()[-1])["restarts"] == 0
    folder.assert_exact(9)


def test_cancel_from_another_terminal_ends_without_a_final_checkpoint(
    kafka: Kafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config={"checkpoint.interval": "1min"}) as run:
        run.until((tmp_path / ".tidegate/runs").exists, "listening")
        run.until(lambda: "running" in command(folder, "status", folder.job), "running")
        command(folder, "cancel", folder.job)
        assert run.wait().code == 130


@pytest.mark.slow
def test_run_creates_missing_topics_and_keeps_others(kafka: Kafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, topics=("totals",))
    orders = unique("orders")
    folder.edit("job.py", "{orders}", orders)
    folder.topics["orders"] = orders
    outcome = folder.run("--create-topics=3")
    assert outcome.code == 0, outcome.err
    assert f"created topic {orders} with 3 partitions" in outcome.err
    assert f"created topic {folder.topics['totals']}" not in outcome.err
    found = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=10).topics
    assert len(found[orders].partitions) == 3
    assert len(found[folder.topics["totals"]].partitions) == 1
    assert "created topic" not in folder.run("--create-topics").err


def interrupted(folder: Folder, after: Callable[[float], bool]) -> subprocess.CompletedProcess[str]:
    """Send Ctrl-C to a run as soon as `after` returns True for the seconds since its start."""
    run = subprocess.Popen(
        [TIDEGATE, "run", "job:Totals", "--kafka", folder.bootstrap],
        cwd=folder.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    began_s = time.monotonic()
    while not after(time.monotonic() - began_s):
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    return subprocess.CompletedProcess([], run.returncode, out, err)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["import", "cluster"])
def test_early_ctrl_c_is_clean(kafka: Kafka, tmp_path: Path, place: str) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    began = tmp_path / "imported"
    folder.edit(
        "job.py",
        "class Order(",
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\n"
        f"time.sleep({5 if place == 'import' else 0})\n\n\nclass Order(",
    )
    sockets = tmp_path / ".tidegate" / "runs"
    done = interrupted(
        folder,
        lambda passed_s: (
            passed_s > 60 or (began.exists() if place == "import" else any(sockets.glob("*.sock")))
        ),
    )
    assert "Traceback" not in done.stderr
    assert "Error" not in done.stderr
    assert done.returncode in ({130} if place == "import" else {0, 4, 130}), done.stderr
    if place == "import":
        assert (done.stdout, done.stderr) == ("", "")
    assert not list(sockets.glob("*.sock"))


def test_terminal_keeps_a_summary_after_the_end(kafka: Kafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, PRINTING)
    folder.orders(4)
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [TIDEGATE, "run", "job:Totals", "--kafka", folder.bootstrap, "--bounded"],
        cwd=folder.path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal has no writer any more
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert run.wait(60) == 0
    text = shown.decode()
    assert text.count("[subtask 0] seen") == 4
    summary = text[text.rindex(f"{folder.job}: finished") :]
    assert re.search(r"records +4 in, 4 out", summary)
    assert re.search(r"duration +[\d.]+ m?s \(", summary)
    assert re.search(r"restarts +0", summary)
