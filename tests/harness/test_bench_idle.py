"""The part of the bench that splits the cost per second of a cluster by process and by cause."""

from __future__ import annotations

import subprocess
import sys
import time
from subprocess import PIPE

import psutil
import pytest

from integration.bench.idle_cost import (
    CASES,
    COLUMNS,
    GRPC,
    KAFKA,
    OTHER,
    PYTHON,
    Figures,
    cause_of,
    measured,
    table,
)


@pytest.mark.parametrize(
    ("thread", "cause"),
    [
        ("python", PYTHON),
        ("rdk:broker1", KAFKA),
        ("event_engine", GRPC),
        ("grpc_global_tim", GRPC),
        ("rocksdb:low", OTHER),
    ],
)
def test_name_of_a_thread_says_whose_it_is(thread: str, cause: str) -> None:
    assert cause_of(thread, "python") == cause


def test_work_of_a_process_counts_as_cpu_and_its_waits_as_wake_ups() -> None:
    def work(_seconds: float) -> None:
        end_s = time.thread_time() + 0.3
        while time.thread_time() < end_s:
            pass
        for _ in range(50):
            time.sleep(0.001)

    began_s = time.monotonic()
    ((kind, figures),) = measured([psutil.Process()], 0.3, work)
    passed_s = time.monotonic() - began_s  # long on a busy machine
    assert kind == "client"
    share = figures.cpu[PYTHON] + figures.cpu[OTHER]  # by the name of the main thread
    assert share * passed_s > 0.2
    assert sum(figures.wakes.values()) * passed_s > 20
    assert 0 < figures.own_mb <= figures.pss_mb


STARTS_A_THREAD = """
import sys, threading, time

def work():
    while time.thread_time() < 0.3:
        pass
    done.set()
    threading.Event().wait()

done = threading.Event()
print("ready", flush=True)
sys.stdin.readline()
threading.Thread(target=work, daemon=True).start()
done.wait()
print("done", flush=True)
sys.stdin.readline()
"""
"""A process whose second thread begins after a line of input, and spends 0.3 s of CPU."""


def test_threads_that_begin_during_a_measurement_count_from_their_start() -> None:
    # A process of its own: in that of pytest, threads of other tests begin and end at any time.
    command = [sys.executable, "-c", STARTS_A_THREAD]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as child:
        assert child.stdin
        assert child.stdout
        assert child.stdout.readline() == "ready\n"
        commands, answers = child.stdin, child.stdout

        def start(_seconds: float) -> None:
            print(file=commands, flush=True)
            assert answers.readline() == "done\n"

        began_s = time.monotonic()
        ((_, figures),) = measured([psutil.Process(child.pid)], 0.0, start)
        passed_s = time.monotonic() - began_s
        print(file=commands, flush=True)
    assert child.returncode == 0
    assert figures.threads == 2
    assert figures.cpu[PYTHON] * passed_s > 0.25


def figures(share: float, pss_mb: float) -> Figures:
    found = Figures(pss_mb, pss_mb / 2, 3)
    found.cpu[PYTHON] = share
    return found


def rows_of(number: int) -> dict[str, dict[str, str]]:
    """The rows of the table of a case with a JobMaster of 2 % and two slots of 10 %."""
    found = [("jobmaster", figures(0.02, 30)), *[("slot", figures(0.10, 50))] * 2]
    made = table(CASES[number], found, 20.0)
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in made.rows}


def test_table_has_the_sums_of_all_and_of_all_but_some() -> None:
    rows = rows_of(0)
    assert rows["all"]["PSS MB"] == "130"
    assert rows["all"]["CPU, of one core"] == "22.0%"
    assert rows["all but the slots"]["CPU, of one core"] == "2.0%"
    assert rows["all but the client"]["goal"] == "180 MB"


def test_goal_of_the_cpu_is_that_of_all_if_idle_and_of_all_but_the_slots_under_load() -> None:
    idle, loaded = rows_of(1), rows_of(3)
    assert (idle["all"]["goal"], idle["all but the slots"]["goal"]) == ("5%", "")
    assert (loaded["all"]["goal"], loaded["all but the slots"]["goal"]) == ("", "10%")
    assert loaded["slot"]["goal"] == "120 MB"
