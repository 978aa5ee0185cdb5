"""Forks of a process: their exit status, signals, and what a fork refuses. Each test has a process
of its own, because the one that runs the tests has threads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.drivers.process.scripts import run_script

BEGIN = """
import os, signal, sys, threading, time
from tidegate.drivers.process.forked import ForkedProcess, fork

read_end, write_end = os.pipe()
"""


def run(script: str) -> list[str]:
    """Run a script, and return the lines that it prints."""
    return run_script(BEGIN + script)[0]


def test_fork_reads_its_standard_input_and_its_exit_status_is_reaped_once() -> None:
    found = run("""
child = fork(lambda: os._exit(len(os.read(0, 100))), read_end)
print(child.poll())
os.write(write_end, b"seven..")
print(child.wait(), child.wait(), child.poll())
child.kill()
child.terminate()
""")
    assert found == ["None", "7 7 7"]


def test_fork_ends_by_the_signals_of_its_parent() -> None:
    found = run("""
forks = [fork(lambda: time.sleep(60), read_end) for _ in range(2)]
forks[0].kill()
forks[1].terminate()
print(*(each.wait() for each in forks))
""")
    assert found == ["-9 -15"]


def test_fork_whose_status_the_system_does_not_keep_counts_as_ended_with_status_0() -> None:
    found = run("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = fork(lambda: os._exit(7), read_end)
print(child.wait())
ended = fork(lambda: os._exit(7), read_end)
while ended.poll() is None:
    time.sleep(0.01)
ended.kill()
print(ended.returncode)
""")
    assert found == ["0", "0"]


def test_main_function_of_a_fork_that_raises_or_returns_ends_the_fork() -> None:
    found = run("""
def fail():
    raise ValueError

print(fork(fail, read_end).wait(), fork(lambda: None, read_end).wait())
""")
    assert found == ["70 70"]


def test_fork_holds_no_descriptor_of_its_parent_and_has_its_own_session() -> None:
    found = run("""
def main():
    own = os.getsid(0) == os.getpid()
    os._exit(own and {0, 1, 2} == {each for each in range(100) if is_open(each)})

def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True

print(fork(main, read_end).wait())
""")
    assert found == ["1"]


def test_process_with_a_second_thread_is_not_forked() -> None:
    found = run("""
from tidegate.errors import InternalError

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
try:
    fork(lambda: None, read_end)
except InternalError as error:
    print(str(error).splitlines()[0], flush=True)
os._exit(0)
""")
    assert "must have one thread" in found[0]


def test_end_of_a_fork_is_seen_by_a_thread_that_waits_for_it() -> None:
    found = run("""
child = fork(lambda: time.sleep(60), read_end)
seen = []
waiting = threading.Thread(target=lambda: seen.append(child.wait()))
waiting.start()
time.sleep(0.2)
print(child.poll())
child.kill()
waiting.join()
print(seen, child.poll())
""")
    assert found == ["None", "[-9] -9"]


def test_processes_that_a_fork_leaves_behind_are_killed_but_not_those_of_another_session() -> None:
    found = run("""
import subprocess

def main():
    commands = [sys.executable, "-c", "import time; time.sleep(60)"]
    left = subprocess.Popen(commands).pid, subprocess.Popen(commands, start_new_session=True).pid
    os.write(told, " ".join(map(str, left)).encode())
    os._exit(3)

told = 50
reading, writing = os.pipe()
os.dup2(writing, told, inheritable=False)
close, os.closerange = os.closerange, lambda first, last: None
child = fork(main, read_end)
os.closerange = close
print(child.wait())
killed, stays = map(int, os.read(reading, 100).split())

def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

while runs(killed):
    time.sleep(0.01)
print(runs(stays))
os.kill(stays, signal.SIGKILL)
""")
    assert found == ["3", "True"]


def test_slot_that_is_a_program_keeps_the_connections_of_a_tracer(tmp_path: Path) -> None:
    """Another file or connection would get their numbers, and the tracer would write to it."""
    script = f"""
import os, socket
from pathlib import Path
from tidegate.drivers.process.fork_server import SlotRole, become_slot
from tidegate.protocol.messages import StartSlot

tracer, agent = socket.socketpair()
_, stacks = os.pipe()

def main(start, given):
    tracer.send(b"span")
    assert agent.recv(4) == b"span"
    assert given == stacks
    os.write(given, b"stack")
    return 5

folder = Path({str(tmp_path)!r})
role = SlotRole(
    main=main,
    log=lambda start: folder / "log",
    output=lambda start: folder / "out",
    max_file_size=1000,
    arguments={{}},
)
start = StartSlot(
    epoch=1, index=0, ordinal=0, job="a", attempt=1, jobmaster_address="",
    working_folder="", settings={{}},
)
become_slot(start, role, stacks)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as slot:
        status = slot.wait(60)
    assert status == 5, (tmp_path / "log").read_text()
