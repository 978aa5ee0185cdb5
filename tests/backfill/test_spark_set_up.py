"""What a backfill says where Spark is missing, unfit or out of reach, and what it cleans up."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tidegate.backfill.spark import folder as folders
from tidegate.backfill.spark.apart import WaitTimeoutError, _Call, run_in_thread
from tidegate.backfill.spark.folder import SessionFolder
from tidegate.backfill.spark.installation import PACKAGES, check_installed, check_version
from tidegate.backfill.spark.master import check_reachable, is_local
from tidegate.backfill.spark.spark_errors import cause, spark_error
from tidegate.backfill.spark.workers import check_storage
from tidegate.errors import (
    ConfigError,
    InternalError,
    SparkError,
    SparkLostError,
    UserError,
    is_recoverable,
)

# --- the extra -----------------------------------------------------------------------------------


def install(folder: Path, **versions: str) -> None:
    """Packages with nothing in them but their metadata, as an installer leaves them."""
    for name, version in versions.items():
        (folder / f"{name}.py").touch()
        metadata = folder / f"{name}-{version}.dist-info"
        metadata.mkdir()
        lines = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}")
        (metadata / "METADATA").write_text("\n".join(lines))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is searched before what is really installed."""
    for name in PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_error_of_a_missing_spark_extra_names_the_packages_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError) as caught:
        check_installed()
    assert str(caught.value) == (
        "A backfill on Spark needs pyspark and py4j and pandas and pyarrow, which are not"
        " installed. They come with an extra: pip install 'tidegate[spark]'."
    )


def test_error_names_a_missing_package_of_the_spark_extra(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(site, pyspark="4.3.0", py4j="1", pyarrow="26")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"needs pandas, which is not installed\. It comes with"):
        check_installed()


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.3.7"])
def test_supported_versions_of_spark_are_accepted(site: Path, version: str) -> None:
    install(site, pyspark=version, py4j="1", pyarrow="26", pandas="3")
    check_installed()


@pytest.mark.parametrize("version", ["3.5.9", "4.1.4", "4.4.0", "5.0.0", "unknown"])
def test_unsupported_version_of_spark_is_refused_with_the_supported_range(
    site: Path, version: str
) -> None:
    install(site, pyspark=version, py4j="1", pyarrow="26", pandas="3")
    with pytest.raises(UserError) as caught:
        check_installed()
    assert str(caught.value) == (
        f"A backfill needs Spark 4.2 or later and before 4.4, but pyspark has the version"
        f" {version}. Install one that fits: pip install 'tidegate[spark]'."
    )


def test_unsupported_version_of_a_running_spark_is_refused() -> None:
    with pytest.raises(UserError, match=r"but the Spark that started has the version 3\.5\.1"):
        check_version("the Spark that started", "3.5.1")


# --- the master ----------------------------------------------------------------------------------


def test_only_local_and_local_cluster_masters_count_as_local() -> None:
    assert [is_local(each) for each in ("local", "local[*]", "local[2,4]", "local-cluster[2,1,9]")]
    assert not is_local("spark://localhost:7077")
    assert not is_local("localhost")


def test_error_names_a_spark_master_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = "{}:{}".format(*free.getsockname())
    with pytest.raises(SparkError) as caught:
        check_reachable(f"spark://{address}")
    assert str(caught.value) == (
        f"No Spark master answers at {address} (Connection refused). Check the address, and check"
        " that the master runs."
    )


def test_check_passes_if_one_of_several_spark_masters_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = "{}:{}".format(*closed.getsockname())
    with socket.create_server(("127.0.0.1", 0)) as alive:
        check_reachable("spark://{},{}:{}".format(gone, *alive.getsockname()))


@pytest.mark.parametrize("master", ["loca", "localhost:7077", "spark://host", "spark://:7077", ""])
def test_wrong_address_of_a_spark_master_is_refused(master: str) -> None:
    with pytest.raises(
        ConfigError, match=re.escape(f"{master!r} is not the address of a Spark master")
    ):
        check_reachable(master)


def test_address_of_spark_connect_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"through Spark Connect \(sc://host:15002\)") as caught:
        check_reachable("sc://host:15002")
    assert "start the command on the cluster with spark-submit" in str(caught.value)


@pytest.mark.parametrize("master", ["local[2,4]", "yarn", "k8s://https://host"])
def test_local_yarn_and_kubernetes_masters_are_not_checked_for_an_answer(master: str) -> None:
    check_reachable(master)


# --- the folder ----------------------------------------------------------------------------------


def age(path: Path) -> None:
    old = time.time() - folders.YOUNG_S - 1
    os.utime(path, (old, old))


def test_session_folder_of_a_killed_driver_is_deleted_by_the_next_driver(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from tidegate.backfill.spark.folder import SessionFolder\n"
        "folder = SessionFolder(pathlib.Path(sys.argv[1]))\n"
        "(folder.path / 'local' / 'shuffled').touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    [orphan] = tmp_path.iterdir()
    young = SessionFolder(tmp_path)
    assert orphan.exists()
    age(orphan)
    age(young.path)
    own = SessionFolder(tmp_path)
    assert set(tmp_path.iterdir()) == {young.path, own.path}
    own.delete()
    young.delete()
    assert not list(tmp_path.iterdir())


def test_session_folder_is_private(tmp_path: Path) -> None:
    assert SessionFolder(tmp_path).path.stat().st_mode & 0o777 == 0o700


# --- calls apart, and their failures -------------------------------------------------------------


def test_run_apart_returns_the_result_or_raises_the_error_of_the_call() -> None:
    assert run_in_thread(lambda: threading.current_thread().name, name="apart") == "apart"
    with pytest.raises(ZeroDivisionError):
        run_in_thread(lambda: 1 // 0, name="apart")


def test_sigint_ends_the_wait_of_run_apart_and_interrupts_the_call() -> None:
    """SIGINT comes while the main thread waits, as Ctrl-C does during a Spark job."""
    stop = threading.Event()
    ended = threading.Event()

    def call() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        stop.wait()
        ended.set()

    # A shell that starts the tests in the background makes them ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_in_thread(call, name="apart", on_interrupt=stop.set)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.is_set()


def test_run_apart_interrupts_the_call_after_its_timeout() -> None:
    stop = threading.Event()
    with pytest.raises(WaitTimeoutError):
        run_in_thread(stop.wait, name="apart", timeout_s=0.01, on_interrupt=stop.set)
    assert stop.is_set()


def test_run_apart_works_in_the_calling_thread_and_an_error_there_ends_the_wait() -> None:
    stop, error, threads = threading.Event(), KeyError("meanwhile"), []

    def meanwhile() -> None:
        threads.append(threading.current_thread())
        raise error

    with pytest.raises(KeyError) as caught:
        run_in_thread(stop.wait, name="apart", meanwhile=meanwhile, on_interrupt=stop.set)
    assert caught.value is error
    assert threads == [threading.current_thread()]
    assert stop.is_set()
    assert run_in_thread(lambda: "result", name="apart", meanwhile=threads.clear) == "result"
    assert threads == []


def test_a_call_that_is_revoked_before_its_thread_runs_does_nothing() -> None:
    done: list[str] = []
    call = _Call(lambda: done.append("ran"), "apart")
    call.revoked = True
    call.start()
    assert not call.done.wait(0.05)
    assert call.begun
    assert not done


OF_A_WORKER = """An error occurred while calling o72.collectToPython.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 3, in main
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "entry.py", line 9, in entry
my.package.OddError: the second: and last
\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
Driver stacktrace:
java.lang.RuntimeException: not this one
"""
OF_JAVA = """An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL: 'local[none]'
\tat org.apache.spark.SparkContext$.createTaskScheduler(SparkContext.scala:1)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (OF_A_WORKER, "my.package.OddError: the second: and last"),
        (OF_JAVA, "Could not parse Master URL: 'local[none]'"),
        ("", ""),
        ("[CODE] Java gateway process exited.", "[CODE] Java gateway process exited"),
    ],
)
def test_cause_finds_the_decisive_line_of_a_spark_error(text: str, line: str) -> None:
    assert cause(text) == line


def test_spark_error_keeps_tidegate_errors_and_translates_all_others() -> None:
    ours = InternalError("a bug")
    assert spark_error("Failed", ours) is ours
    translated = spark_error("The Spark job failed", RuntimeError(OF_JAVA))
    assert isinstance(translated, SparkError)
    assert str(translated) == "The Spark job failed: Could not parse Master URL: 'local[none]'."


def test_error_whose_text_is_lost_with_the_jvm_says_that_the_jvm_has_ended() -> None:
    class LostError(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    text = str(spark_error("The Spark job failed", LostError()))
    assert text == "The Spark job failed: Spark's JVM has ended (ConnectionRefusedError)."


class Session:
    """A session whose JVM answers, or has ended with the error `lost`."""

    def __init__(self, lost: Exception | None) -> None:
        self._lost = lost

    @property
    def sparkContext(self) -> Session:  # noqa: N802
        return self

    @property
    def startTime(self) -> int:  # noqa: N802
        if self._lost is not None:
            raise self._lost
        return 0


def test_error_of_a_call_is_not_recoverable_if_the_jvm_has_ended() -> None:
    """py4j says of a JVM that was killed only that the call has failed."""
    error = RuntimeError("An error occurred while calling o57.collectToPython")
    lost = spark_error("The Spark job failed", error, Session(ConnectionRefusedError()))
    assert type(lost) is SparkLostError
    assert str(lost) == "The Spark job failed: Spark's JVM has ended (ConnectionRefusedError)."
    assert not is_recoverable(lost)
    failed = spark_error("The Spark job failed", error, Session(None))
    assert type(failed) is SparkError
    assert is_recoverable(failed)


# --- the storage ---------------------------------------------------------------------------------

ON_THIS_MACHINE = ("local", "local[2,4]", "spark://127.0.0.1:7077", "spark://[::1]:1,localhost:2")
ELSEWHERE = (
    "spark://10.0.0.7:7077",
    "spark://localhost:1,spark.example:2",
    "yarn",
    "k8s://https://127.0.0.1",
)


@pytest.mark.parametrize("storage", ["checkpoints", "/srv/checkpoints", "file:///srv/checkpoints"])
def test_local_folder_as_checkpoint_storage_needs_a_spark_master_on_this_machine(
    storage: str,
) -> None:
    for master in ON_THIS_MACHINE:
        check_storage(master, storage)
    for master in ELSEWHERE:
        with pytest.raises(ConfigError) as caught:
            check_storage(master, storage)
        assert f"the workers of {master} may run on others" in str(caught.value)
        check_storage(master, "s3://bucket/checkpoints")
