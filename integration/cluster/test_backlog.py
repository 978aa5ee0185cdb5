"""A job with a backlog takes checkpoints less often, and then at the normal interval again."""

from __future__ import annotations

import json
import os
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from integration.support.user_project import TOTALS, Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(180)]

ORDERS = 16_000
SLEEP_S = 0.0005
"""The delay of each order, in seconds. The job reads 1,500 orders per second, so the backlog lasts
ten seconds.
"""
SHORT_MS, LONG_MS = 100, 1_000
CONFIG = {
    "checkpoint.interval": f"{SHORT_MS} ms",
    "checkpoint.interval_during_backlog": f"{LONG_MS} ms",
    "checkpoint.interval_when_idle": "0 ms",
    "restart.strategy": "fixed_delay",
    "restart.delay": "100 ms",
}


def slow(path: Path, bootstrap: str) -> Folder:
    folder = Folder.make(path, bootstrap, "import time\n" + TOTALS.lstrip())
    counting = "        self.total.value += order.amount\n"
    folder.edit("job.py", counting, f"        time.sleep({SLEEP_S})\n{counting}")
    folder.orders(ORDERS)
    return folder


def reports(run: Run) -> list[dict[str, Any]]:
    """Return all reports of the running job so far, without a line that is still being written."""
    lines = (json.loads(line) for line in run.out.splitlines(keepends=True) if line[-1] == "\n")
    return [line for line in lines if line["event"] == "report" and line["state"] == "RUNNING"]


def is_behind(run: Run) -> bool:
    told = reports(run)
    return bool(told) and told[-1]["processing_backlog"]


def stretches(run: Run) -> list[tuple[float, int]]:
    """Return for each backlog the seconds for which reports show it, and the number of checkpoints
    that completed in this time.
    """
    found = []
    for (_, behind), group in groupby(
        reports(run), lambda it: (it["attempt"], it["processing_backlog"])
    ):
        if behind:
            told = list(group)
            seconds = (told[-1]["reported_ms"] - told[0]["reported_ms"]) / 1000
            ended = told[-1]["checkpoints_completed"] - told[0]["checkpoints_completed"]
            found.append((seconds, ended))
    return found


def test_checkpoint_interval_is_longer_until_the_job_has_caught_up(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = slow(tmp_path, kafka.bootstrap)
    with folder.started("--json", bounded=False, config=CONFIG) as run:
        run.until(lambda: is_behind(run), "behind")
        run.until(lambda: sum(seconds for seconds, _ in stretches(run)) > 3, "behind for long")
        os.kill(run.slots()[0], signal.SIGKILL)
        run.until(lambda: is_behind(run) and reports(run)[-1]["attempt"] > 1, "behind once more")
        run.until(lambda: len(folder.read("totals")) == ORDERS, "at the end of its input", 60)
        run.until(lambda: not is_behind(run), "told that it has caught up")
        caught_up = reports(run)[-1]
        often = caught_up["checkpoints_completed"] + 20
        run.until(lambda: reports(run)[-1]["checkpoints_completed"] >= often, "often again")
        took_s = (reports(run)[-1]["reported_ms"] - caught_up["reported_ms"]) / 1000
        assert run.stop().code == 0
        told = stretches(run)
    for seconds, ended in told:
        assert ended <= seconds * 1000 / LONG_MS + 2, told
    assert any(seconds > 3 and ended >= 2 for seconds, ended in told), told
    assert took_s < 20 * LONG_MS / 1000 / 1.5
    assert folder.logs().count("behind=True") >= 2  # once for each attempt
    folder.assert_exact(ORDERS)


def test_no_backlog_is_reported_if_interval_during_backlog_is_zero(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = slow(tmp_path, kafka.bootstrap)
    config = {**CONFIG, "checkpoint.interval_during_backlog": "0 ms"}
    with folder.started("--json", bounded=False, config=config) as run:
        run.until(lambda: len(folder.read("totals")) > ORDERS / 2, "far into its input", 60)
        told = reports(run)
        assert run.stop().code == 0
    assert not any(report["processing_backlog"] for report in told)
    seconds = (told[-1]["reported_ms"] - told[0]["reported_ms"]) / 1000
    assert told[-1]["checkpoints_completed"] > 1.3 * seconds * 1000 / LONG_MS
