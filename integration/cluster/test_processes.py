"""Kills of the real processes of a cluster. Only their JobMasters and slots are stubs
(`support/process_stubs.py`).
"""

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from integration.support.stub_cluster import ROOT, SOON_S, Running
from tidegate.errors import RefusedError

GONE_WITHIN_S = 10.0
"""A limit for a busy machine, in seconds. It is not a measured value: the tests check only that the
processes end.
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    others = psutil.Process().children(recursive=True)  # brokers of earlier tests
    running = Running(tmp_path)
    try:
        yield running
    finally:
        below = [one for one in psutil.Process().children(recursive=True) if one not in others]
        running.client.close()
        running.cluster.close()
        assert left_of(below) == []


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE  # a dead orphan, until init reaps it
    except psutil.NoSuchProcess:
        return True


def is_pending(number: signal.Signals, process: psutil.Process) -> bool:
    """Return whether the process has been sent the signal and did not get it yet."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    shared = status.partition("\nShdPnd:")[2].split()[0]
    return bool(int(shared, 16) >> number - 1 & 1)


def left_of(those: list[psutil.Process], within_s: float = GONE_WITHIN_S) -> list[psutil.Process]:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if all(is_gone(process) for process in those):
            return []
        time.sleep(0.005)
    return [process for process in those if not is_gone(process)]


def eventually(holds: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.02)
    return False


def test_killed_slot_is_reported_with_its_exit_status_and_replaced(running: Running) -> None:
    job = running.submit()
    before = running.complete(job)
    os.kill(before.slots[1].pid, signal.SIGKILL)
    after = running.complete(job, before.attempt)
    reason = after.failed_attempts[0].error.message
    assert f"its process {before.slots[1].pid} was killed by SIGKILL" in reason
    assert {slot.pid for slot in after.slots}.isdisjoint({slot.pid for slot in before.slots})
    assert sorted(slot.ordinal for slot in after.slots) == [0, 1, 2, 3]
    assert left_of([psutil.Process(slot.pid) for slot in after.slots], 0.0)


def test_killed_task_manager_ends_its_fork_server_and_slots_and_is_replaced(
    running: Running,
) -> None:
    job = running.submit()
    before = running.complete(job)
    killed = psutil.Process(before.slots[0].task_manager_pid)
    below = killed.children(recursive=True)
    assert len(below) == 3
    killed.kill()
    assert left_of(below) == []
    after = running.complete(job, before.attempt)
    assert "its process was killed by SIGKILL" in after.failed_attempts[0].error.message
    (ended,) = (
        line
        for line in running.log("jobmanager.log").splitlines()
        if "Exited(" in line and "TaskManagerExited" in line
    )
    assert "status=-9" in ended
    managers = {slot.task_manager_pid for slot in after.slots}
    assert len(managers) == 2
    assert killed.pid not in managers


def test_killed_fork_server_ends_its_slots_and_its_task_manager(
    running: Running,
) -> None:
    job = running.submit()
    before = running.complete(job)
    manager = psutil.Process(before.slots[0].task_manager_pid)
    (fork_server,) = manager.children()
    below = fork_server.children()
    fork_server.kill()
    assert left_of([*below, manager]) == []
    running.complete(job, before.attempt)
    names = [path.name for path in (running.folder / "logs").glob("tm-*[0-9].log")]
    assert any("the fork server exited with status -9" in running.log(name) for name in names)


def test_killed_jobmaster_is_replaced_together_with_its_slots(running: Running) -> None:
    job = running.submit()
    before = running.complete(job)
    os.kill(before.jobmaster_pid, signal.SIGKILL)
    after = running.complete(job, before.attempt)
    assert after.jobmaster_pid != before.jobmaster_pid
    assert after.restarts == 1
    assert "was killed by SIGKILL" in after.failed_attempts[0].error.message
    managers = {slot.task_manager_pid for slot in before.slots}
    assert {slot.task_manager_pid for slot in after.slots} == managers
    assert (
        left_of([psutil.Process(slot.pid) for slot in before.slots if psutil.pid_exists(slot.pid)])
        == []
    )


def test_killed_jobmanager_ends_all_processes_and_its_jobs_are_recovered(
    running: Running,
) -> None:
    job = running.submit()
    before = running.complete(job)
    manager = psutil.Process(running.cluster.pid)
    below = manager.children(recursive=True)
    assert len(below) == 1 + 2 * (1 + 1 + 2)  # JobMaster; TaskManagers, fork servers and slots
    manager.kill()
    assert left_of(below) == []
    after = running.complete(job, before.attempt)
    assert running.cluster.exits == (-9,)
    assert running.cluster.pid != manager.pid
    assert len(after.slots) == 4
    with pytest.raises(RefusedError, match="is live on this cluster"):
        running.submit()


def test_killed_owner_of_a_cluster_ends_all_its_processes(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-m", "integration.support.stub_cluster", str(tmp_path)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    with owner, owner.stdout or io.BytesIO() as up:
        assert up.readline() == b"up\n"
        below = psutil.Process(owner.pid).children(recursive=True)
        owner.kill()
    assert len(below) == 1 + 1 + 2 * (1 + 1 + 2)
    assert left_of(below) == []


def test_stopped_job_stays_finished_after_a_jobmanager_kill(running: Running) -> None:
    job = running.submit(parallelism=2)
    report = running.complete(job)
    running.client.stop(job)
    assert running.client.wait(job, timeout_s=SOON_S).state == "FINISHED"
    slots = list[psutil.Process]()
    for slot in report.slots:
        with suppress(psutil.NoSuchProcess):  # it has ended already
            slots.append(psutil.Process(slot.pid))
    assert left_of(slots) == []
    os.kill(running.cluster.pid, signal.SIGKILL)
    assert eventually(lambda: running.cluster.restarts == 1)
    assert running.client.wait(job, timeout_s=SOON_S).state == "FINISHED"
    assert running.client.report(job).jobmaster_pid == 0
    running.submit(parallelism=1)
    assert running.complete(job).state == "RUNNING"


def test_second_job_waits_for_slots_until_the_first_job_ends(running: Running) -> None:
    first = running.submit("first", 3)
    running.complete(first)  # the first job gets its slots before the second job requests any
    second = running.submit("second", 2)
    asked = running.client.wait(second, until=lambda report: report.attempt > 0, timeout_s=SOON_S)
    assert asked.slots == ()
    running.client.stop(first, final_checkpoint=False)
    assert running.client.wait(first, timeout_s=SOON_S).state == "CANCELED"
    assert len(running.complete(second).slots) == 2


def test_a_slot_that_fails_leaves_its_reason_in_its_log(running: Running) -> None:
    running.submit(parallelism=1, slot="raises")

    def told() -> bool:
        logs = (running.folder / "logs" / "job").glob("slot-*.log")
        return any("RuntimeError: as the test wishes" in log.read_text() for log in logs)

    assert eventually(told)
    assert eventually(lambda: "status=70" in running.log("jobmanager.log"))


def test_slots_inherit_no_thread_connection_or_file_of_the_fork_server(running: Running) -> None:
    job = running.submit()
    report = running.complete(job)
    fork_servers = {psutil.Process(slot.pid).ppid() for slot in report.slots}
    for fork_server in fork_servers:
        assert psutil.Process(fork_server).num_threads() == 1
        assert psutil.Process(fork_server).net_connections(kind="inet") == []
    for slot in report.slots:
        process = psutil.Process(slot.pid)
        assert os.getsid(slot.pid) == slot.pid
        assert process.environ()["MALLOC_ARENA_MAX"] == "64"
        # It has only its own gRPC: no socket of the fork server, and nothing of other slots.
        kept = {Path(file.path).name for file in process.open_files()}
        log = f"slot-{slot.slot.task_manager}-{slot.slot.index}.log"
        assert kept <= {log, f"subtask-{slot.ordinal}.out"}
        inherited = [
            connection
            for connection in process.net_connections(kind="unix")
            if connection.fd >= 0 and connection.type == socket.SOCK_STREAM
        ]
        assert inherited == []


def test_ctrl_c_does_not_end_the_processes_of_a_cluster(running: Running) -> None:
    """After the signals, the cluster replaces a killed slot, so its processes still work."""
    job = running.submit()
    before = running.complete(job)
    manager = psutil.Process(running.cluster.pid)
    every = [manager, *manager.children(recursive=True)]
    for process in every:
        process.send_signal(signal.SIGINT)
    assert eventually(lambda: not any(is_pending(signal.SIGINT, process) for process in every))
    killed = before.slots[1].pid
    os.kill(killed, signal.SIGKILL)
    after = running.complete(job, before.attempt)
    (failed,) = after.failed_attempts
    assert f"its process {killed} was killed by SIGKILL" in failed.error.message
    slots = {slot.pid for slot in before.slots}
    assert not any(is_gone(process) for process in every if process.pid not in slots)
    assert running.cluster.restarts == 0


def test_logs_and_arguments_show_no_secret(running: Running) -> None:
    job = running.submit(secret="hush-hush")
    running.complete(job)
    for process in psutil.Process().children(recursive=True):
        assert "hush-hush" not in " ".join(process.cmdline())
    for path in (running.folder / "logs").rglob("*.log"):
        assert "hush-hush" not in path.read_text(encoding="utf-8")
        assert path.stat().st_mode & 0o077 == 0


def test_many_attempts_leak_no_file_or_child_process(running: Running) -> None:
    job = running.submit(parallelism=2)
    report = running.complete(job)
    watched = [
        psutil.Process(running.cluster.pid),
        *(psutil.Process(pid) for pid in {slot.task_manager_pid for slot in report.slots}),
        *(psutil.Process(psutil.Process(slot.pid).ppid()) for slot in report.slots),
    ]

    def counts() -> list[tuple[int, int]]:
        return [(process.num_fds(), len(process.children())) for process in watched]

    before: list[tuple[int, int]] = []
    for turn in range(12):
        os.kill(report.slots[0].pid, signal.SIGKILL)
        report = running.complete(job, report.attempt)
        if turn == 1:
            before = counts()
    for (fds, children), (fds_before, children_before) in zip(counts(), before, strict=True):
        assert fds <= fds_before + 2  # allows for a connection that is being made
        assert children <= children_before
