"""Traps snap in their order, once, at the n-th time, in whatever thread and process it is."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from integration.faults.kill_points.kill_points import Plan, Trap, Traps


def held_at(plan: Plan, point: str) -> threading.Thread:
    thread = threading.Thread(target=Traps(Plan(plan.folder)).reached, args=(point,))
    thread.start()
    return thread


def await_pid(plan: Plan, number: int) -> int:
    while (pid := plan.pid(number)) is None:
        pass
    return pid


def test_process_is_held_at_a_kill_point_until_it_is_released(tmp_path: Path) -> None:
    plan = Plan.of(tmp_path, [Trap("slot.wrote", holds=True)])
    thread = held_at(plan, "slot.wrote")
    assert await_pid(plan, 0) == os.getpid()
    assert thread.is_alive()
    plan.release(0)
    thread.join()
    assert plan.snapped() == [os.getpid()]


def test_kill_point_is_armed_after_the_one_before_was_reached(tmp_path: Path) -> None:
    plan = Plan.of(tmp_path, [Trap("slot.wrote", holds=True)])
    plan.release(0)
    traps = Traps(Plan(tmp_path))
    traps.reached("slot.flushed")
    assert plan.snapped() == []
    assert plan.add(Trap("slot.flushed", 2, holds=True)) == 1  # known to processes that run
    plan.release(1)
    for point in ("slot.flushed", "slot.wrote", "slot.flushed"):
        traps.reached(point)
    assert plan.pid(1) is None
    traps.reached("slot.flushed")
    assert plan.pid(1) is not None


def test_concurrent_threads_trigger_each_kill_point_once(tmp_path: Path) -> None:
    count = 200
    plan = Plan.of(tmp_path, [Trap("slot.wrote", holds=True)] * count)
    for number in range(count):
        plan.release(number)
    traps = Traps(Plan(tmp_path))
    failed: list[BaseException] = []

    def go() -> None:
        try:
            for _ in range(count):
                traps.reached("slot.wrote")
        except BaseException as error:  # noqa: BLE001  # told in the main thread
            failed.append(error)

    threads = [threading.Thread(target=go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(plan.snapped()) == count


GOES_ON = """
import os, sys, threading, time
from pathlib import Path
from integration.faults.kill_points.kill_points import Plan, Traps

def work():
    Traps(Plan(Path(sys.argv[1]))).reached("slot.wrote")
    os.write(1, b"went on")

threading.Thread(target=work).start()
time.sleep(60)
"""


def test_thread_that_reaches_a_stopping_kill_point_runs_no_further(tmp_path: Path) -> None:
    """The test repeats this, because a stop of the whole process sometimes lets the thread
    continue.
    """
    for number in range(10):
        plan = Plan.of(tmp_path / str(number), [Trap("slot.wrote", stops=True)])
        with subprocess.Popen(
            [sys.executable, "-c", GOES_ON, str(plan.folder)], stdout=subprocess.PIPE
        ) as process:
            stopped = psutil.Process(process.pid)
            while stopped.status() != psutil.STATUS_STOPPED:
                time.sleep(0.002)
            process.kill()
            assert process.communicate()[0] == b""


def test_kill_point_does_nothing_without_a_plan() -> None:
    Traps(Plan.from_environment()).reached("slot.wrote")
