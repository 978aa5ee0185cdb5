"""Spark's own standalone cluster on loopback, from the package: a master and workers of one core.

A worker here is a process of Spark that starts an executor, a JVM of its own, and that one starts
Python workers. All of them die with the test.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from integration.running import owned
from integration.spark.processes import is_alive, wait_until

PLACE = ("--host", "127.0.0.1", "--webui-port", "0")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A master, by its address, and its workers."""

    master: str
    workers: tuple[subprocess.Popen[bytes], ...]


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 1) -> Iterator[Cluster]:
    """A cluster that is ready; afterwards none of its processes is left."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    log = folder / "cluster.log"
    log.touch()
    worker = [*PLACE, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / "work"), master]
    started: list[subprocess.Popen[bytes]] = []
    try:
        started.append(_start("master.Master", *PLACE, "--port", str(port), log=log))
        started += [_start("worker.Worker", *worker, log=log) for _ in range(workers)]
        wait_until(
            lambda: log.read_text().count("Registering worker") == workers, "the workers register"
        )
        yield Cluster(master, tuple(started[1:]))
    finally:
        everything = [each for process in started for each in _family(process.pid)]
        for process in reversed(started):
            process.terminate()
            process.wait()
        wait_until(lambda: not any(map(is_alive, everything)), "all have ended")


def _start(name: str, *arguments: str, log: Path) -> subprocess.Popen[bytes]:
    import pyspark

    from tidegate.backfill.spark.java import find_java

    home = Path(pyspark.__file__).parent
    java_home = find_java().make_home(log.parent / name)
    command = ["/usr/bin/env", f"SPARK_HOME={home}", f"JAVA_HOME={java_home}"]
    command += [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
    return owned(command, folder=Path.cwd(), log=log)


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [process, *process.children(recursive=True)]
