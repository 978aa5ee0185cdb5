"""The cluster of `docker/compose.yaml` under test: `session_cluster.SessionCluster` in containers.

The tests use the file unchanged, under their own project name. Images, ports and the number of
orders come from the environment. The cluster and its volumes are removed at the end. The engine
treats a container that it killed itself as stopped by hand, so `start_again` starts it. The
JobManager is killed inside its container instead, and the restart policy must start it again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from integration.demo.topics import await_brokers
from integration.support import engine
from integration.support.running import ROOT, GaveUpError
from integration.support.session_cluster import ENDLESS
from tidegate.drivers.kafka.broker_config import choose_ports

PREFIX: Final = "tidegate-test-"
UP_TIMEOUT_S, DOWN_TIMEOUT_S = 240.0, 60.0
RESTARTED_TIMEOUT_S = 60.0
SERVERS: Final = ("jobmanager", "taskmanager1", "taskmanager2", "kafka1", "kafka2", "kafka3")

KILL_ALL_BELOW_INIT: Final = """
import os, pathlib, signal
for each in pathlib.Path("/proc").iterdir():
    if each.name.isdecimal() and (each / "stat").read_text().rpartition(")")[2].split()[1] == "1":
        os.kill(int(each.name), signal.SIGKILL)
"""
"""A program that kills all children of process 1. The server is the only one: the process that
runs this program has another parent.
"""


class Composed:
    """The cluster, from `compose up` to `compose down`."""

    def __init__(self, compose: Sequence[str]) -> None:
        ports = [each.client for each in choose_ports(4)]
        self.jobmanager = f"127.0.0.1:{ports[0]}"
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports[1:])
        self.project = f"{PREFIX}{os.getpid()}"
        file = str(ROOT / "docker" / "compose.yaml")
        self._compose = [*compose, "-f", file, "-p", self.project]
        self._environment = {
            **os.environ,
            "KAFKA_TEST_IMAGE": engine.kafka_image(),
            "TIDEGATE_IMAGE": engine.tidegate_image(),
            "JOBMANAGER_PORT": str(ports[0]),
            **{f"KAFKA{node}_PORT": str(port) for node, port in enumerate(ports[1:], 1)},
        }
        self._client = engine.engine()

    def __enter__(self) -> Self:
        self._remove_orphans()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "-t", "2", timeout_s=DOWN_TIMEOUT_S)

    def compose(self, *words: str, timeout_s: float) -> str:
        """Run a command of Compose to its end, and return its output. Raise GaveUpError if it
        fails.
        """
        done = subprocess.run(
            [*self._compose, *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            raise GaveUpError(f"compose {words[0]}: {done.stderr[-2_000:]} {self.tail()}")
        return done.stdout

    def begin(self, rate: int) -> None:
        self._environment |= {"ORDERS": ENDLESS, "ORDERS_RATE": str(rate)}
        self.compose("up", "--detach", "--no-build", timeout_s=UP_TIMEOUT_S)
        await_brokers(self.bootstrap, 3)

    def kill(self, name: str) -> None:
        container = self._container(name)
        if name != "jobmanager":
            container.kill(signal.SIGKILL)
            return
        before = container.attrs["RestartCount"]
        container.exec_run(["python", "-c", KILL_ALL_BELOW_INIT])
        end_s = time.monotonic() + RESTARTED_TIMEOUT_S
        while container.attrs["RestartCount"] == before:
            if time.monotonic() > end_s:
                raise GaveUpError(f"the restart policy does not bring {name} back: {self.tail()}")
            time.sleep(0.1)
            container.reload()

    def start_again(self, name: str) -> None:
        if name != "jobmanager":
            self._container(name).start()

    def end_orders(self) -> None:
        producer = self._container("producer")
        if producer.status != "running":
            raise GaveUpError(f"the producer ended by itself: {self.tail()}")
        producer.kill(signal.SIGKILL)

    def run(self, service: str, *words: str) -> str:
        """Run a one-off container of a service to its end, and return its output."""
        return self.compose("run", "--rm", service, *words, timeout_s=UP_TIMEOUT_S)

    def tail(self) -> str:
        lines = []
        for container in self._all():
            name = container.labels["com.docker.compose.service"]
            text = container.logs(tail=5).decode(errors="replace")
            lines += [f"{name} ({container.status}): {line}" for line in text.splitlines()]
        return "\n".join(lines)

    def _container(self, name: str) -> Any:
        (found,) = self._all(f"com.docker.compose.service={name}")
        return found

    def _all(self, *labels: str) -> list[Any]:
        mine = [f"com.docker.compose.project={self.project}", *labels]
        found: list[Any] = self._client.containers.list(all=True, filters={"label": mine})
        return found

    def _remove_orphans(self) -> None:
        """Remove the projects of dead test processes. A project's name holds its process id."""
        label = "com.docker.compose.project"
        left: dict[str, list[Any]] = {}
        for kind in (self._client.containers, self._client.networks, self._client.volumes):
            options = {"all": True} if kind is self._client.containers else {}
            for each in kind.list(filters={"label": label}, **options):
                labels = each.attrs.get("Labels") or each.attrs["Config"]["Labels"]
                left.setdefault(labels[label], []).append(each)
        for project, parts in left.items():
            number = project.removeprefix(PREFIX)
            if project.startswith(PREFIX) and not Path(f"/proc/{number}").exists():
                for part in parts:
                    forced = {"force": True} if hasattr(part, "kill") else {}
                    part.remove(**forced)
