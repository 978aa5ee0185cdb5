"""Local runs as other terminals see them: sockets, their modes, stale ones, and a stop."""

from __future__ import annotations

import os
import queue
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from tidegate.cli.cluster.session import show_job
from tidegate.cli.run import control_socket as local_runs
from tidegate.cli.run.control_socket import RUNS, RunSocket, find_local_runs, stop_local_run
from tidegate.cli.run.stopping import RunStop, StopRequest
from tidegate.controlplane.client.client import Client
from tidegate.errors import RefusedError, RpcError
from tidegate.ids import JobName
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport

if TYPE_CHECKING:
    from tidegate.terminal.display import Display

JOB = JobName("totals")


class Silent:
    """A display that shows nothing, and remembers stops."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def show(self, report: JobReport) -> None:
        pass

    def stopping(self, *, final_checkpoint: bool = True) -> None:
        self.stopped.set()


def run_stop() -> tuple[RunStop, Silent]:
    display = Silent()
    return RunStop(JOB, cast("Display", display)), display


def test_run_is_found_with_its_newest_report_while_it_lasts(tmp_path: Path) -> None:
    stop, _ = run_stop()
    with RunSocket(tmp_path, JOB, stop) as visible:
        assert visible.problem == ""
        (run,) = find_local_runs(tmp_path)
        assert (run.job, run.pid, run.report) == (JOB, os.getpid(), None)
        stop.reported(JobReport(job=JOB, state=JobState.RUNNING, records_in=7))
        (run,) = find_local_runs(tmp_path)
        assert run.report is not None
        assert (run.report.state, run.report.records_in) == (JobState.RUNNING, 7)
    assert find_local_runs(tmp_path) == []
    assert not list((tmp_path / RUNS).glob("*.sock"))


def test_run_is_found_if_user_code_has_set_a_timeout_for_all_sockets(
    tmp_path: Path,
) -> None:
    socket.setdefaulttimeout(0.01)
    try:
        with RunSocket(tmp_path, JOB, run_stop()[0]) as visible:
            assert visible._server is not None
            assert visible._server.gettimeout() is None
            assert [run.job for run in find_local_runs(tmp_path)] == [JOB]
    finally:
        socket.setdefaulttimeout(None)


def test_status_of_another_job_names_the_runs_that_the_folder_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unanswered(_client: Client, *_given: object) -> None:
        raise RpcError("no process answers there")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Client, "_call", unanswered)
    with (
        RunSocket(tmp_path, JOB, run_stop()[0]),
        pytest.raises(RpcError, match=rf"'total' is under way in {tmp_path}\. Here runs: totals\."),
    ):
        show_job("total", None, as_json=False)


def test_only_the_owner_can_reach_the_socket(tmp_path: Path) -> None:
    with RunSocket(tmp_path, JOB, run_stop()[0]):
        (path,) = (tmp_path / RUNS).glob("*.sock")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("line", [b"", b"[]\n", b"{}\n", b"no JSON\n", b'{"request":"other"}\n'])
def test_request_that_is_not_understood_is_answered_by_the_end_of_the_connection(
    tmp_path: Path, line: bytes
) -> None:
    failed: list[object] = []
    with pytest.MonkeyPatch.context() as patch, RunSocket(tmp_path, JOB, run_stop()[0]):
        patch.setattr(threading, "excepthook", failed.append)
        (path,) = (tmp_path / RUNS).glob("*.sock")
        with local_runs._connected(path) as connection:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(10) == b""
        assert [run.job for run in find_local_runs(tmp_path)] == [JOB]
    assert failed == []


def test_run_that_answers_in_another_form_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / RUNS / "9.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b'{"pid": "nine"}\n')

        answering = threading.Thread(target=answer)
        answering.start()
        assert find_local_runs(tmp_path) == []
        answering.join(10)
    assert path.exists()


def test_socket_of_a_killed_run_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / RUNS
    folder.mkdir(parents=True)
    script = (
        "import os, socket; s = socket.socket(socket.AF_UNIX); "
        f"s.bind({str(folder / '9.sock')!r}); s.listen(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script], check=False)
    assert (folder / "9.sock").exists()
    assert find_local_runs(tmp_path) == []
    assert not (folder / "9.sock").exists()


def left_by_a_killed_run(path: Path) -> Path:
    local_runs._listening(path).close()
    return path


def test_two_runs_with_one_process_id_and_host_name_are_both_found(tmp_path: Path) -> None:
    """This is so in two containers that share a working folder and have one host name."""
    other = JobName("clicks")
    with RunSocket(tmp_path, JOB, run_stop()[0]) as first:
        with RunSocket(tmp_path, other, run_stop()[0]) as second:
            assert first.problem == second.problem == ""
            assert [run.job for run in find_local_runs(tmp_path)] == [other, JOB]
            assert len({run.path for run in find_local_runs(tmp_path)}) == 2
        assert [run.job for run in find_local_runs(tmp_path)] == [JOB]


def test_socket_of_another_kernel_is_left_alone(tmp_path: Path) -> None:
    with RunSocket(tmp_path, JOB, run_stop()[0]):
        (path,) = (tmp_path / RUNS).glob("*.sock")
    pid, host, boot, chance = path.stem.split("-")
    elsewhere = left_by_a_killed_run(path.with_name(f"{pid}-ffffff-eeeeee-{chance}.sock"))
    container = left_by_a_killed_run(path.with_name(f"{pid}-ffffff-{boot}-{chance}.sock"))
    before_boot = left_by_a_killed_run(path.with_name(f"{pid}-{host}-eeeeee-{chance}.sock"))
    assert find_local_runs(tmp_path) == []
    assert elsewhere.exists()
    assert not container.exists()
    assert not before_boot.exists()


def test_run_that_begins_to_listen_meanwhile_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / RUNS / "9.sock"
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        locked = local_runs._locked

        def listening(folder: Path) -> object:
            server.listen()  # between the refused connection and the lock
            return locked(folder)

        monkeypatch.setattr(local_runs, "_locked", listening)
        assert find_local_runs(tmp_path) == []
        assert path.exists()


def test_stop_reaches_the_run_and_returns_its_last_report(tmp_path: Path) -> None:
    stop, display = run_stop()
    reports: list[JobReport] = []
    progress: queue.SimpleQueue[JobReport] = queue.SimpleQueue()
    with RunSocket(tmp_path, JOB, stop):
        (run,) = find_local_runs(tmp_path)
        waiting = threading.Thread(
            target=lambda: reports.append(
                stop_local_run(run, final_checkpoint=True, drain=True, on_report=progress.put)
            )
        )
        waiting.start()
        assert display.stopped.wait(10)
        assert stop._request == StopRequest(final_checkpoint=True, drain=True)
        assert not reports
        waits = JobReport(job=JOB, state=JobState.INITIALIZING, storage_trouble="It is gone.")
        stop.reported(waits)
        assert progress.get(timeout=10).storage_trouble == "It is gone."
        stop.reported(JobReport(job=JOB, state=JobState.FINISHED, stopped="with a checkpoint"))
    waiting.join(10)
    assert [each.state for each in reports] == [JobState.FINISHED]


def test_stop_before_the_job_has_started_is_refused_and_a_killed_run_is_an_error(
    tmp_path: Path,
) -> None:
    stop, display = run_stop()
    errors: list[Exception] = []

    def ask(run: local_runs.LocalRun) -> None:
        try:
            stop_local_run(run, final_checkpoint=True, drain=False, on_report=lambda _: None)
        except (RefusedError, RpcError) as error:
            errors.append(error)

    with RunSocket(tmp_path, JOB, stop):
        (run,) = find_local_runs(tmp_path)
        waiting = threading.Thread(target=ask, args=(run,))
        waiting.start()
        assert display.stopped.wait(10)
    waiting.join(10)
    path = tmp_path / RUNS / "9.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        waiting = threading.Thread(target=ask, args=(run._replace(path=path),))
        waiting.start()
        server.accept()[0].close()
        waiting.join(10)
    assert [type(error) for error in errors] == [RefusedError, RpcError]


@pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc/self/fd")
def test_run_in_a_folder_with_a_long_path_is_found(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    with RunSocket(deep, JOB, run_stop()[0]) as visible:
        assert visible.problem == ""
        assert [run.job for run in find_local_runs(deep)] == [JOB]
