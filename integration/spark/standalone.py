"""Spark's own standalone cluster on loopback, from the package: a master and workers of one core.

A worker here is a process of Spark. It starts an executor, which is a JVM of its own, and the
executor starts Python workers. All of them end with the test.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from integration.spark.processes import is_alive, wait_until
from integration.support.running import owned

HERE = "127.0.0.1"
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
"""A class name that the JVM of an executor has on its command line."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The address of a master, and its workers."""

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def standalone_cluster(folder: Path, *, hosts: Sequence[str] = (HERE,)) -> Iterator[Cluster]:
    """Start a cluster with a worker for each of `hosts`, and yield when all workers have
    registered.

    `hosts` are loopback addresses. Several of them matter, because Spark runs the copy of a slow
    task only on another host. No process of the cluster is left afterwards.
    """
    with socket.create_server((HERE, 0)) as free:
        port = free.getsockname()[1]
    master = f"spark://{HERE}:{port}"
    log = folder / "cluster.log"
    log.touch()
    worker = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), master]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start("master.Master", HERE, "--port", str(port), log=log))
        started += [_start("worker.Worker", host, *worker, log=log) for host in hosts]
        wait_until(
            lambda: log.read_text().count("Registering worker") == len(hosts),
            "the workers register",
        )
        yield Cluster(master, tuple(started[1:]))
    finally:
        everything = [each for process in started for each in _family(process.pid)]
        for process in reversed(started):
            process.terminate()
            process.wait()
        wait_until(lambda: not any(map(is_alive, everything)), "all have ended")


def _start(name: str, host: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    from tidegate.backfill.spark.java import find_java

    home = Path(pyspark.__file__).parent
    java_home = find_java().make_home(log.parent / name)
    command = ["/usr/bin/env", f"SPARK_HOME={home}", f"JAVA_HOME={java_home}"]
    command += [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    command += ["--host", host, "--webui-port", "0", *arguments]
    return owned(command, folder=Path.cwd(), log=log)


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [process, *process.children(recursive=True)]
