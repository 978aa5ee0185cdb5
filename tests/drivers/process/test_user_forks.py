"""Forks that user code makes end where they would leave it. Each test has a process of its own,
whose frames named `tidegate` are a few lines that call functions of user code, as a loop does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.drivers.process.scripts import run_script
from tidegate.drivers.exchange.sockets import SocketExchange
from tidegate.drivers.kafka.coordinator_connection import CoordinatorConnection
from tidegate.drivers.kafka.producer import KafkaProducer
from tidegate.drivers.kafka.reader import KafkaPartitionReader
from tidegate.drivers.process import user_forks
from tidegate.drivers.rocksdb.store import RocksDBStore
from tidegate.drivers.rpc.channel import GrpcClient
from tidegate.drivers.storage.local import LocalStore
from tidegate.drivers.storage.objects import ObjectStore

BEGIN = """
from concurrent.futures import ThreadPoolExecutor as Pool
import concurrent.futures, ctypes, multiprocessing, os, signal, subprocess, sys, threading, time
from tidegate.drivers.process import user_forks

caller = {"__name__": "tidegate.loop", "original": os.getpid(), "os": os}
exec('''
def call(function, *arguments):
    try:
        found = function(*arguments)
        print("called", os.getpid() == original, found, flush=True)
    except BaseException as error:
        print("raised", os.getpid() == original, repr(error), flush=True)

def each(results):
    for result in results:
        print("result", os.getpid() == original, result, flush=True)

def apply(function, values):
    found = sorted(map(function, values))
    print("applied", os.getpid() == original, found, flush=True)
''', caller)
call, each, apply = caller["call"], caller["each"], caller["apply"]
user_forks.watch_forks(everywhere=True)

def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def fork_and_return():
    pid = os.fork()
    return status_of(pid) if pid else None
"""


def run(script: str, *, begin: str = BEGIN) -> tuple[list[str], str]:
    """Run a script. Return the lines that it prints, and its messages on stderr."""
    return run_script(begin + script)


def test_fork_that_returns_from_user_code_ends_with_a_message_and_status_70() -> None:
    found, said = run("call(fork_and_return)")
    assert found == ["called True 70"]
    assert "is a fork of process" in said
    assert "it left the function that had called os.fork()" in said


@pytest.mark.parametrize(
    "leave", ["raise ValueError", "sys.exit(3)", "raise KeyboardInterrupt", "1 / 0"]
)
def test_exception_of_a_fork_does_not_reach_the_loop(leave: str) -> None:
    found, _ = run(f"""
def function():
    pid = os.fork()
    if pid == 0:
        {leave}
    return status_of(pid)

call(function)
""")
    assert found == ["called True 70"]


def test_fork_ends_at_the_yield_of_a_generator_and_the_original_goes_on() -> None:
    found, _ = run("""
def results():
    pid = os.fork()
    yield status_of(pid) if pid else 0
    yield 2

each(results())
""")
    assert found == ["result True 70", "result True 2"]


def test_forks_of_each_record_do_not_fork_again() -> None:
    """With a loop in C, too: a fork that took the next value would double the forks."""
    found, said = run("apply(lambda value: (value, fork_and_return()), range(8))")
    assert found == [f"applied True {[(value, 70) for value in range(8)]}"]
    assert said.count("[tidegate]") == 8


def test_fork_by_the_loop_itself_ends() -> None:
    found, said = run("call(os.fork)\nos.wait()")
    assert [line.rsplit(" ", 1)[0] for line in found] == ["called True"]
    assert said.count("[tidegate]") == 1


@pytest.mark.parametrize(
    "thread",
    [
        "t = threading.Thread(target=fork_and_return); t.start(); t.join(); return 70",
        "pool = Pool(1); return pool.submit(fork_and_return).result()",
    ],
)
def test_fork_of_a_thread_of_user_code_ends_with_its_function(thread: str) -> None:
    found, said = run(f"def function():\n    {thread}\ncall(function)")
    assert found == ["called True 70"]
    assert said.count("[tidegate]") == 1


def test_fork_may_work_in_user_code_and_end_itself() -> None:
    found, said = run("""
def function():
    pid = os.fork()
    if pid == 0:
        print(sum(map(abs, range(10))), flush=True)
        os._exit(9)
    return status_of(pid)

call(function)
""")
    assert (found, said) == (["45", "called True 9"], "")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_multiprocessing_and_pools_work_and_their_forks_have_no_trace_function(
    method: str, tmp_path: object
) -> None:
    work = "import os, sys\ndef work(value):\n    return value * 2, sys.gettrace() is None\n"
    (tmp_path / "work.py").write_text(work)  # type: ignore[operator]
    found, said = run(f"""
sys.path.insert(0, {str(tmp_path)!r})
from work import work

def pools():
    context = multiprocessing.get_context({method!r})
    process = context.Process(target=work, args=(1,))
    process.start()
    process.join()
    with context.Pool(2) as pool:
        of_pool = pool.map(work, [1, 2])
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        return process.exitcode, of_pool, list(pool.map(work, [3]))

call(pools)
""")
    assert (found, said) == (["called True (0, [(2, True), (4, True)], [(6, True)])"], "")


def test_commands_work_also_with_a_function_before_their_start() -> None:
    found, said = run("""
def commands():
    first = subprocess.run(["true"], preexec_fn=lambda: None).returncode
    spawned = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 4"], os.environ)
    return first, os.system("exit 3") >> 8, status_of(spawned)

call(commands)
""")
    assert (found, said) == (["called True (0, 3, 4)"], "")


@pytest.mark.parametrize("fork", ["ctypes.CDLL(None).fork()", "os.fork()"])
def test_driver_ends_a_fork_that_the_trace_function_does_not(fork: str) -> None:
    found, said = run(f"""
def function():
    pid = {fork}
    if pid == 0:
        sys.settrace(None)
        user_forks.end_if_forked()
    return status_of(pid)

call(function)
user_forks.end_if_forked()
""")
    assert found == ["called True 70"]
    assert "it used clients, connections or state" in said


class EndError(BaseException):
    """The end of a fork, which takes place in `os._exit` otherwise."""


def bare(driver: type[Any], **attributes: Any) -> Any:
    """Return an object without a client, which the call must not reach."""
    made = object.__new__(driver)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


DRIVER_CALLS: dict[str, Callable[[], object]] = {
    "producer, begin": lambda: bare(KafkaProducer).begin(),
    "producer, send": lambda: bare(KafkaProducer).send("out", [b""], None),
    "producer, full queue": lambda: bare(
        KafkaProducer, _poll=lambda _: 0
    )._produce_when_queue_has_space("out", b"", None, (), 0),
    "producer, flush": lambda: bare(KafkaProducer).flush(1),
    "reader, poll": lambda: bare(KafkaPartitionReader).poll(1, 0),
    "reader, commit": lambda: bare(KafkaPartitionReader).commit({("in", 0): 1}),
    "coordinators": lambda: bare(CoordinatorConnection).client(),
    "state": lambda: bare(RocksDBStore).write([], []),
    "exchange": lambda: bare(SocketExchange).send(1, 0, []),
    "rpc": lambda: bare(GrpcClient).call(None),
    "folder, create": lambda: bare(LocalStore).create("a", b""),
    "folder, put": lambda: bare(LocalStore).put("a", b""),
    "bucket, create": lambda: bare(ObjectStore).create("a", b""),
    "bucket, put": lambda: bare(ObjectStore).put("a", b""),
}


@pytest.mark.parametrize("call", DRIVER_CALLS)
def test_each_driver_ends_a_fork_before_it_uses_its_client(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(_: str) -> None:
        raise EndError

    monkeypatch.setattr(user_forks._Watch, "owner", os.getppid())
    monkeypatch.setattr(user_forks, "_end", end)
    with pytest.raises(EndError):
        DRIVER_CALLS[call]()


def test_fork_that_hangs_in_user_code_ends_by_sigterm() -> None:
    found, _ = run("""
exec("def end(number, frame): raise SystemExit", caller)
signal.signal(signal.SIGTERM, caller["end"])

def function():
    lock = threading.Lock()
    lock.acquire()
    pid = os.fork()
    if pid == 0:
        lock.acquire()
    os.kill(pid, signal.SIGTERM)
    return status_of(pid)

call(function)
""")
    assert found == ["called True -15"]


def test_script_may_fork_where_tidegate_has_not_called_it() -> None:
    found, said = run("""
user_forks.watch_forks(everywhere=False)
pid = os.fork()
print("fork" if pid == 0 else status_of(pid), flush=True)
if pid:
    call(fork_and_return)
""")
    assert sorted(found) == ["0", "called True 70", "fork"]
    assert said.count("[tidegate]") == 1


def test_fork_does_not_hold_what_its_parent_keeps() -> None:
    found, _ = run("""
read_end, write_end = os.pipe()
kept = os.fdopen(write_end, "wb")
user_forks.keep_from_forks(kept)
user_forks.keep_from_forks(open(os.devnull))

def function():
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(1)  # below, it would kill the whole process group
    kept.close()
    end = os.read(read_end, 1)  # the fork would hold it open
    os.kill(pid, signal.SIGKILL)
    return end, status_of(pid)

call(function)
""")
    assert found == ["called True (b'', -9)"]
