"""A job for tests of the command `tidegate backfill`: start it, follow its events, check its
output.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from integration.demo.checker import check
from integration.demo.orders import write
from integration.support.brokers import unique
from integration.support.running import journal, owned
from integration.support.session_cluster import TIDEGATE
from integration.support.transactions import open_transactions

ORDERS: Final = 6_000
WAVE: Final = 2_000
TIMEOUT_S: Final = 240.0  # a busy machine needs two minutes to start Spark
DONE, FAILED, REFUSED, STOPPED, ABANDONED = 0, 1, 2, 3, 130


class Job:
    """A pipeline whose topics, folders and name belong to one test."""

    def __init__(self, bootstrap: str, folder: Path, source: str, sink: str) -> None:
        self.bootstrap, self.folder, self.source, self.sink = bootstrap, folder, source, sink
        self.name = unique("backfilled")
        self.module = self.name.replace("-", "_")
        folder.joinpath(f"{self.module}.py").write_text(
            "from pipelines.order_totals import OrderTotals\n\n\n"
            f'class Job(OrderTotals, name="{self.name}"):\n'
            '    """A job with a name of its own."""\n'
        )
        self.storage = str(folder / "checkpoints")
        self.seed = 0
        self.master = "in-process"
        self.backfill = [TIDEGATE, "backfill"]
        """The first words of the command line."""

    def write(self, count: int = ORDERS) -> None:
        self.seed += 1
        write(self.bootstrap, self.source, seed=self.seed, rate=1_000_000, count=count)

    def command(self, *more: str, action: str = "backfill") -> list[str]:
        settings = {
            "kafka.bootstrap_servers": self.bootstrap,
            "sources.orders.topic": self.source,
            "sinks.totals.topic": self.sink,
            "checkpoint.dir": self.storage,
            "checkpoint.interval": "1 s",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        waves = ["--master", self.master, "--wave-records", str(WAVE)]
        if action == "backfill":
            return [*self.backfill, f"{self.module}:Job", *waves, *given, *more]
        return [TIDEGATE, action, f"{self.module}:Job", *given, *more]

    def start(
        self, *more: str, action: str = "backfill", folder: Path | None = None
    ) -> subprocess.Popen[bytes]:
        return owned(
            self.command(*more, action=action),
            folder=folder or self.folder,
            log=self.folder / "log",
            pipe=True,
        )

    def run(self, *more: str, action: str = "backfill") -> tuple[int, list[dict[str, Any]]]:
        """Run a command that ends by itself, and return its exit code and its events."""
        with self.start("--json", *more, action=action) as process:
            out, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, [json.loads(line) for line in out.splitlines()]

    def in_a_wave(self) -> bool:
        """Return whether a wave has begun and is not published."""
        entries = journal(Path(self.storage, self.name))
        return bool(entries) and entries[-1]["kind"] == "claim"

    def open_transactions(self) -> list[str]:
        return open_transactions(self.bootstrap, self.name)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def assert_exact(self, sink: str = "") -> None:
        verdict = check(self.bootstrap, self.source, sink or self.sink)
        assert verdict.exact, verdict
        assert verdict.records_out == verdict.records_expected, verdict


def read_event(process: subprocess.Popen[bytes], kind: str) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == kind:
            return event
    raise AssertionError(f"the command ended without {kind!r}")
