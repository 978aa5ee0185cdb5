"""Signal handlers of user code: where their exceptions go, and which signals stay tidegate's. Each
test has a process of its own, with a few lines named `tidegate` that call user code.
"""

from __future__ import annotations

import signal

import pytest

from tests.drivers.process.scripts import run_script

BEGIN = """
import asyncio, json, os, signal, sys, time, traceback
from tidegate.drivers.process import user_signals

loop = {"__name__": "tidegate.loop", "time": time, "json": json}
exec('''
def call(function, *arguments):
    try:
        print("returned", function(*arguments), flush=True)
    except Exception as error:
        print("raised", repr(error), flush=True)

def turn(seconds):
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end and not reports:
            json.dumps([json.loads("[1, 2, 3]")] * 100)
            time.sleep(0.001)
    except BaseException as error:
        print("the loop got", repr(error), flush=True)

def end(number, frame):
    print("ended", flush=True)
    raise SystemExit(0)
''', loop)
call, turn = loop["call"], loop["turn"]
reports = loop["reports"] = []
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, loop["end"])
user_signals.guard_handlers(lambda error, number: reports.append(f"{number.name} {error!r}"))

def fail(number, frame):
    raise TimeoutError("too late")
"""


def run(script: str, status: int = 0) -> list[str]:
    """Run a script, and return the lines that it prints."""
    return run_script(BEGIN + script, status)[0]


def test_time_limit_by_sigalrm_interrupts_the_call_that_it_was_set_for() -> None:
    found = run("""
def slow():
    signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        time.sleep(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)

call(slow)
print(reports)
""")
    assert found == ["raised TimeoutError('too late')", "[]"]


@pytest.mark.parametrize("error", ["TimeoutError", "KeyboardInterrupt", "SystemExit"])
def test_exception_of_a_handler_does_not_reach_the_loop_but_is_reported(error: str) -> None:
    found = run(f"""
def fail(number, frame):
    raise {error}(6)

signal.signal(signal.SIGALRM, fail)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.001)
turn(30)
signal.setitimer(signal.ITIMER_REAL, 0)
print(reports[0])
""")
    assert found == [f"SIGALRM {error}(6)"]


def test_handler_that_raises_nothing_runs_at_once_and_sees_the_interrupted_frame() -> None:
    found = run("""
seen = []
signal.signal(signal.SIGUSR1, lambda number, frame: seen.append((number, frame is not None)))
call(lambda: os.kill(os.getpid(), signal.SIGUSR1))
print(seen, reports)
""")
    assert found == ["returned None", f"[({signal.SIGUSR1:d}, True)] []"]


def test_user_code_finds_the_handlers_that_it_has_set() -> None:
    found = run(
        """
old = signal.signal(signal.SIGALRM, fail)
print(signal.getsignal(signal.SIGALRM) is fail, signal.signal(signal.SIGALRM, old) is fail)
print(signal.getsignal(signal.SIGALRM) == signal.SIG_DFL)
print(signal.getsignal(signal.SIGTERM) is loop["end"], signal.signal(signal.SIGTERM, fail))
print(signal.getsignal(signalnum=signal.SIGTERM) is fail)
print(signal.signal(signalnum=signal.SIGALRM, handler=fail) == signal.SIG_DFL)
""".replace(
            ", signal.signal(signal.SIGTERM, fail))", ", bool(signal.signal(signal.SIGTERM, fail)))"
        )
    )
    assert found == ["True True", "True", "True True", "True", "True"]


@pytest.mark.parametrize(
    "handler",
    ["signal.SIG_IGN", "signal.SIG_DFL", "fail", "lambda *_: print('mine', flush=True)"],
)
def test_sigterm_ends_the_process_whatever_user_code_has_set(handler: str) -> None:
    found = run(f"""
signal.signal(signal.SIGTERM, {handler})
signal.signal(signal.SIGTERM, {handler})
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(60)
""")
    assert found == (["mine", "ended"] if "mine" in handler else ["ended"])


def test_ctrl_c_of_user_code_stays_its_error_after_it_sets_the_default_handler() -> None:
    """Python's handler then runs only through the wrapper."""
    found = run("""
from tidegate.user_exceptions import process_ends
signal.signal(signal.SIGINT, fail)
signal.signal(signal.SIGINT, signal.default_int_handler)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
print(KeyboardInterrupt in process_ends())
""")
    assert found == ["True", "False"]


def test_lost_connection_does_not_end_the_process_after_a_reset_of_sigpipe() -> None:
    found = run("""
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reading, writing = os.pipe()
os.close(reading)
try:
    os.write(writing, b"x")
except BrokenPipeError:
    print(signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL)
""")
    assert found == ["True"]


def test_ctrl_c_stays_ignored_after_a_reset_and_asyncio_runs() -> None:
    found = run("""
async def main():
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, done.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await done.wait()
    return "async"

signal.signal(signal.SIGINT, signal.default_int_handler)
os.kill(os.getpid(), signal.SIGINT)
call(lambda: asyncio.run(main()))
""")
    assert found == ["returned async"]


def test_fork_of_the_process_has_the_handlers_that_it_sets_itself() -> None:
    found = run("""
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""")
    assert found == ["-15"]
