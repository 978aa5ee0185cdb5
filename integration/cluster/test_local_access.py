"""Access to the processes of a cluster: only the owner has it, and users that the operator allows.

A local run listens on Unix sockets in a folder of mode 0700. A process that listens on an address
of the network starts only with `--insecure`.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from integration.faults.kill_points.killed_runs import Job
from integration.support.running import in_time
from integration.support.session_cluster import TIDEGATE, tidegate
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

NOBODY = 65534
"""The user id of a user without rights."""


def tree(pid: int) -> list[psutil.Process]:
    """Return a process and all processes that it has started."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Act with the rights of another user. Only root can do this."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def listening_ports(pid: int) -> list[str]:
    """Return the TCP addresses on which the processes of a run listen."""
    return [
        f"{each.name()} {connection.laddr}"
        for each in tree(pid)
        for connection in each.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def own_runs(folder: Path) -> Path:
    """Return the folder of the socket by which other terminals find a run. It stays."""
    return folder / ".tidegate" / "runs"


def sockets(pid: int) -> set[Path]:
    """Return the Unix sockets of a run whose paths exist. Slots remove theirs when all slots are
    connected.
    """
    paths = {
        Path(str(connection.laddr))
        for each in tree(pid)
        for connection in each.net_connections("unix")
        if str(connection.laddr).startswith("/")
    }
    return {path for path in paths if path.exists()}


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Make a folder whose path is so short that the kernel shows the path of the run's socket. A
    longer one is bound by a descriptor of its folder.
    """
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def test_local_run_listens_only_on_unix_sockets_that_only_its_owner_can_open(
    kafka: EmbeddedKafka, short_path: Path
) -> None:
    job = Job.make(kafka.bootstrap, short_path, "Totals")
    job.write(200, seed=1)
    with job.started() as run:
        run.until(job.is_settled, "settled")
        assert listening_ports(run.process.pid) == []
        found = sockets(run.process.pid)
        folders = {path.parent for path in found}
        assert len(found) >= 5, found  # the run, JobManager, JobMaster, TaskManager and slots
        own = own_runs(short_path)
        assert own in folders
        for folder in folders:
            assert folder == own or folder.name.startswith("tidegate-")
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert folder.stat().st_uid == os.getuid()
        if os.getuid() == 0:  # only root can act as another user
            for path in found:
                foreign = socket.socket(socket.AF_UNIX)
                with foreign, acting_as(NOBODY), pytest.raises(PermissionError):
                    foreign.connect(str(path))
        run.kill()
    job.run()
    job.assert_exact()
    [kept] = [folder for folder in folders if folder.name.startswith("tidegate-run-")]
    assert kept.exists()  # the run was killed, so a later run removes its folder when it is old


@pytest.mark.slow
def test_a_run_that_ends_in_order_leaves_no_socket(kafka: EmbeddedKafka, short_path: Path) -> None:
    job = Job.make(kafka.bootstrap, short_path, "Totals")
    job.write(200, seed=1)
    with job.started() as run:
        run.until(job.is_settled, "settled")
        found = sockets(run.process.pid)
        assert found
        run.process.terminate()
        run.wait(60)
    assert not [path for path in found if path.exists()]
    assert [path.parent for path in found if path.parent.exists()] == [own_runs(short_path)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "more"),
    [("jobmanager", ()), ("taskmanager", ("--jobmanager", "127.0.0.1:1"))],
)
def test_server_on_a_network_address_is_refused_without_insecure(
    role: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    refused = tidegate(role, "-c", f"{role}.bind_host=0.0.0.0", *more, folder=tmp_path)
    assert refused.returncode == 2
    assert f"start the {role} with --insecure" in refused.stderr.replace("\n", " ")


@pytest.mark.slow
def test_a_server_on_the_network_warns_at_its_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["-c", "jobmanager.bind_host=0.0.0.0", "-c", f"jobmanager.port={port}"]
    log = tmp_path / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [TIDEGATE, "jobmanager", "--insecure", *words],
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    try:
        until_s = time.monotonic() + 60
        while tidegate("list", "--jobmanager", f"127.0.0.1:{port}", folder=tmp_path).returncode:
            in_time(time.monotonic() < until_s, log.read_text(encoding="utf-8"))
        assert "without encryption and authentication" in log.read_text(encoding="utf-8")
    finally:
        server.terminate()
        server.wait(30)
