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

from tidegate.backfill.spark.apart import WaitTimeoutError, _Call, run_in_thread
from tidegate.backfill.spark.installation import PACKAGES, check_installed, check_version
from tidegate.backfill.spark.master import check_form, check_needs, check_reachable, is_local
from tidegate.backfill.spark.session import YOUNG_FOLDER_S, SessionFolder
from tidegate.backfill.spark.spark_errors import cause, spark_error, spark_translated, texts_in
from tidegate.backfill.spark.worker_checks import check_storage
from tidegate.errors import (
    ConfigError,
    InternalError,
    SparkError,
    SparkLostError,
    UserError,
    is_recoverable,
)
from tidegate.masking import remember_value

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


@pytest.mark.parametrize(
    "master",
    [
        "",
        "loca",
        "LOCAL",
        "local[]",
        "local[0]",
        "local[two]",
        "local[2,0]",
        "localhost:7077",
        "mesos://host:5050",
        "sprak://host:7077",
        "spark:/host:7077",
        "spark://host",
        "spark://:7077",
        "spark://host:port",
        "spark://host:99999",
        "spark://host:7077/path",
        "spark://user@host:7077",
        "spark://host:7077,other",
        "k8s://",
        "k8s://ftp://host",
        "k8s://ftp://host:21",
        "k8s://https://host:port",
        "YARN",
        "yarn://host",
    ],
)
def test_wrong_address_of_a_spark_master_is_refused(master: str) -> None:
    for check in (check_form, check_reachable):
        with pytest.raises(
            ConfigError, match=re.escape(f"{master!r} is not the address of a Spark master")
        ):
            check(master)


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[*]",
        "local[2, 4]",
        "local-cluster[2,1,512]",
        "yarn",
        "spark://host:7077,[::1]:7078",
        "k8s://https://host:6443",
        "k8s://https://host",
        "k8s://host:6443",
        "k8s://http://127.0.0.1:8001/proxy",
    ],
)
def test_addresses_of_all_kinds_of_masters_are_accepted(master: str) -> None:
    check_form(master)


def test_yarn_without_the_folder_of_its_settings_is_refused_with_the_remedy(
    tmp_path: Path,
) -> None:
    check_needs("yarn", {}, {"YARN_CONF_DIR": str(tmp_path)})
    check_needs("local[2]", {}, {})
    for environment, found in (
        ({}, "Neither is set"),
        ({"HADOOP_CONF_DIR": "/absent"}, r"Neither is a folder \(/absent\)"),
    ):
        with pytest.raises(ConfigError, match=f"{found}.*export HADOOP_CONF_DIR=/etc/hadoop/conf"):
            check_needs("yarn", {}, environment)


def test_kubernetes_without_an_image_is_refused_with_the_setting() -> None:
    check_needs("k8s://https://host", {"kubernetes.executor.container.image": "i"}, {})
    with pytest.raises(
        ConfigError, match=r"-c backfill\.spark\.kubernetes\.container\.image=IMAGE"
    ):
        check_needs("k8s://https://host", {}, {})


def test_error_names_an_api_of_kubernetes_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check_reachable(f"k8s://https://127.0.0.1:{port}")
    with pytest.raises(SparkError, match=rf"No API of Kubernetes answers at 127\.0\.0\.1:{port}"):
        check_reachable(f"k8s://https://127.0.0.1:{port}")


def test_address_of_spark_connect_is_refused_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match=r"through Spark Connect \(sc://host:15002\)") as caught:
        check_reachable("sc://host:15002")
    assert "start the command on the cluster with spark-submit" in str(caught.value)


# --- the folder ----------------------------------------------------------------------------------


def age(path: Path) -> None:
    old = time.time() - YOUNG_FOLDER_S - 1
    os.utime(path, (old, old))


def test_session_folder_of_a_killed_driver_is_deleted_by_the_next_driver(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from tidegate.backfill.spark.session import SessionFolder\n"
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


def test_what_pyspark_and_py4j_log_goes_to_the_file_and_not_to_the_terminal(
    tmp_path: Path,
) -> None:
    """py4j also uses the root logger, which adds a handler to itself."""
    module = tmp_path / "py4j" / "fails.py"
    module.parent.mkdir()
    module.write_text(
        "import logging\n"
        "for name in ('py4j.clientserver', 'pyspark.sql', 'SQLQueryContextLogger'):\n"
        "    logging.getLogger(name).error(f'text of {name}', exc_info=OSError('x'))\n"
        "try:\n"
        "    1 / 0\n"
        "except ZeroDivisionError:\n"
        "    logging.exception('text of root')\n"
    )
    script = (
        "import logging, pathlib, sys\n"
        "from tidegate.backfill.spark.spark_errors import texts_in\n"
        "with texts_in(pathlib.Path(sys.argv[1])):\n"
        "    import fails\n"
        "    logging.getLogger('tidegate.x').warning('ours stays')\n"
        "    logging.getLogger().warning('the root logger of user code stays')\n"
        "logging.getLogger('py4j').warning('after the block')\n"
        "logging.getLogger().addHandler(logging.StreamHandler(sys.stdout))\n"
        "logging.getLogger('py4j').warning('again to the root logger')\n"
    )
    log = tmp_path / "spark.log"
    done = subprocess.run(
        [sys.executable, "-c", script, str(log)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(module.parent)},
    )
    assert done.stderr.splitlines() == [
        "ours stays",
        "the root logger of user code stays",
        "after the block",
    ]
    assert done.stdout == "again to the root logger\n"
    text = log.read_text()
    assert "ZeroDivisionError: division by zero" in text
    for name in ("py4j.clientserver", "pyspark.sql", "SQLQueryContextLogger", "root"):
        assert f"text of {name}" in text


def test_message_of_a_spark_error_names_the_file_with_the_complete_text(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    remember_value("hush-hush")
    with texts_in(log):
        error = spark_error("The Spark job failed", RuntimeError(f"{OF_A_WORKER} hush-hush"))
    assert str(error).endswith(f": my.package.OddError: the second: and last. See {log}.")
    text = log.read_text()
    assert "Driver stacktrace" in text
    assert "hush-hush" not in text


def test_exception_of_py4j_that_nobody_has_translated_becomes_a_spark_error() -> None:
    lost = type("Py4JNetworkError", (Exception,), {"__module__": "py4j.protocol"})
    says = r"^Spark failed: Answer from Java side is empty\.$"
    with pytest.raises(SparkError, match=says), spark_translated():
        raise lost("Answer from Java side is empty")
    with pytest.raises(ZeroDivisionError), spark_translated():
        _ = 1 // 0


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
