"""User code forks its process with `os.fork()`, and both processes return.

The original processes continue as if nothing had happened, and every total is there once. A fork
writes nothing to Kafka, state or other slots, and no fork outlives the run.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from integration.support.user_project import ONE_CHECKPOINT, TOTALS, Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

FORKS = """
import concurrent.futures
import multiprocessing
import os
import subprocess
import sys
import threading
import time

FOLDER = "{folder}"


def forked(name, *, then=None):
    pid = os.fork()
    if pid == 0:
        if then is not None:
            then()
        return
    with open(f"{FOLDER}/forks", "a") as forks:
        forks.write(f"{name} {pid}\\n")
    if then is not forever:
        os.waitpid(pid, 0)


def fail():
    raise ValueError("in the fork")


def forever():
    while True:
        time.sleep(1)


def fork_in_a_thread():
    thread = threading.Thread(target=forked, args=("thread",))
    thread.start()
    thread.join()


def double(value):
    return 2 * value


def check_pools():
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            assert pool.map(double, [1, 2]) == [2, 4]
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        assert list(pool.map(double, [3])) == [6]
    assert subprocess.run(["true"]).returncode == 0 == os.system("true")


forked("import")


def mapped(order):
    if int(time.time() * 1e6) % 4 == 0:
        forked("map")
    return order


def pairs(order):
    forked("flat_map", then=lambda: sys.exit(0))
    yield order


def key(order):
    forked("key")
    return order.customer
"""

EDITS = (
    ("from collections.abc", FORKS + "\n\nfrom collections.abc"),
    (
        "    def process(",
        """\
    def open(self) -> None:
        check_pools()
        forked("open")
        forked("open-forever", then=forever)
        fork_in_a_thread()

    def close(self) -> None:
        forked("close")

    def process(""",
    ),
    (
        "        yield Total(",
        """\
        forked("before")
        forked("raises", then=fail)
        yield Total(ctx.key, self.total.value)
        forked("after")
        return
        yield Total(""",
    ),
    (
        "self.orders.key_by(lambda order: order.customer)",
        "self.orders.map(mapped, returns=Order).flat_map(pairs, returns=Order).key_by(key)",
    ),
)


def test_forks_of_user_code_change_no_total_and_none_outlives_the_run(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, TOTALS, partitions=2)
    for old, new in EDITS:
        folder.edit("job.py", old, new.replace("{folder}", str(tmp_path)))
    folder.orders(24)
    outcome = folder.run("-p", "2", config=ONE_CHECKPOINT)
    assert outcome.code == 0, outcome.err
    assert " 0 restarts" in outcome.err
    folder.assert_exact(24)
    forks = [line.split() for line in (tmp_path / "forks").read_text().splitlines()]
    assert {name for name, _ in forks} >= {
        *("import", "open", "open-forever", "thread", "flat_map", "key", "before", "raises"),
        *("after", "close"),
    }
    ids = {int(pid) for _, pid in forks}
    left = [each for each in psutil.process_iter() if each.pid in ids and each.is_running()]
    assert [each for each in left if each.status() != psutil.STATUS_ZOMBIE] == []
    assert "it left the function that had called os.fork()" in folder.logs()
    assert "it left the function that had called os.fork()" in outcome.err  # the import there
