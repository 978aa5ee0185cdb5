"""Provides the Spark session of a backfill. This process starts one, or uses its active session.

`start_session` launches a JVM with a SparkContext. Both end with this process, also when it is
killed. Only this process holds the pipe that is the standard input of Spark's gateway, and the
gateway exits when the pipe is closed. `adopt_session` uses a program's active session, as in a
notebook or under spark-submit. It creates a second session in the same SparkContext with the
settings of a backfill, so that the program's own settings do not change.

The start runs in its own thread (`apart`), so that Python's SIGINT handler is not replaced.

Spark reuses its Python workers, and with them the modules that they have imported. Only a new
session sees code that has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import IO, Any, Final, Self

from tidegate.backfill.spark.apart import WaitTimeoutError, run_in_thread
from tidegate.backfill.spark.installation import check_installed, check_version
from tidegate.backfill.spark.java import find_java
from tidegate.backfill.spark.master import check_reachable, is_on_this_machine
from tidegate.backfill.spark.rows import ROWS_PER_BATCH
from tidegate.backfill.spark.spark_errors import log_hint, spark_error
from tidegate.backfill.spark.spark_settings import check_names, merged
from tidegate.errors import SparkError, UserError, check
from tidegate.masking import is_secret

FOLDER_PREFIX: Final = "tidegate-spark-"
FOLDER_LOCK: Final = "lock"
YOUNG_FOLDER_S: Final = 60.0  # a new folder is without its lock for a short time


class SessionFolder:
    """A private folder (mode 0700) that this process holds locked: shuffle files, the JVM's
    temporary files and its log.

    The folder is deleted when the session closes. A killed driver cannot delete its folder, so the
    next session deletes it. Each folder has a file that its driver keeps locked. If the lock is
    free, the driver of the folder has exited.
    """

    def __init__(self, parent: Path | None = None) -> None:
        """Create a folder in `parent`, by default in Python's folder for temporary files."""
        parent_folder = Path(parent or tempfile.gettempdir())
        _delete_orphans(parent_folder)
        self.path = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent_folder))
        self._lock = os.open(self.path / FOLDER_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for each in ("local", "tmp", "warehouse"):
            (self.path / each).mkdir()

    def delete(self) -> None:
        """Delete the folder. If another process still writes a file there, the file may remain
        until the next session.
        """
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _delete_orphans(parent_folder: Path) -> None:
    for path in parent_folder.glob(f"{FOLDER_PREFIX}*"):
        try:
            if (
                path.stat().st_uid != os.getuid()
                or time.time() - path.stat().st_mtime < YOUNG_FOLDER_S
            ):
                continue
            lock = os.open(path / FOLDER_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError:
            continue  # another session deletes it now
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


START_TIMEOUT_S: Final = 180.0  # the default of backfill.start_timeout
STOP_TIMEOUT_S: Final = 30.0
LOG_LINES_SHOWN: Final = 5
NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})

SQL_SETTINGS: Final = {
    "spark.sql.adaptive.enabled": "false",  # it may merge the partitions of a level
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_BATCH),
}
"""Settings that `levels` requires. Each session has its own, so an adopted one gets them too."""

_STOP_THREAD: Final = "spark-stop"

_environment_lock = threading.Lock()


@dataclass(slots=True)
class BackfillSession:
    """A Spark session with the settings of a backfill. As a context manager, it closes itself."""

    spark: Any
    """A pyspark.sql.SparkSession."""
    owned: bool
    """True if `start_session` has started it. `close` does not stop an adopted session."""
    ships: bool = False
    """True if `ship` has sent the workers their packages."""
    _gateway: Any = None
    _folder: SessionFolder | None = None
    _closed: bool = field(default=False)

    @property
    def master(self) -> str:
        """The address of the master, as Spark has it."""
        return str(self.spark.sparkContext.master)

    @property
    def jvm_pid(self) -> int | None:
        """The process id of the driver's JVM. None if this process did not start the JVM."""
        process: subprocess.Popen[bytes] | None = self._gateway and self._gateway.proc
        return process.pid if process is not None else None

    @contextlib.contextmanager
    def temporary_folder(self) -> Iterator[Path]:
        """Create a folder on this host, and delete it at the end of the `with` statement.

        If this process is killed before that, the next session deletes the folder.
        """
        folder = SessionFolder(self._folder.path / "tmp" if self._folder is not None else None)
        try:
            yield folder.path
        finally:
            folder.delete()

    def ship(self, archive: Path) -> None:
        """Send an archive of packages to the Python workers, which import from it first.

        Spark sends the archive to each executor before the executor runs its first task, and
        unpacks it in the executor's working folder. Earlier jobs do not use it.
        """
        context = self.spark.sparkContext
        try:
            run_in_thread(
                lambda: context.addArchive(f"{archive}#{archive.stem}"), name="spark-ship"
            )
        except Exception as error:
            raise spark_error("Spark did not accept the packages", error, self.spark) from error
        paths = [archive.stem, context.environment.get("PYTHONPATH", "")]
        context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        self.ships = True

    def close(self) -> None:
        """Stop Spark, wait for the end of its JVM and delete its folder. A second call does
        nothing.

        An adopted session is not stopped.
        """
        if self._closed or not self.owned:
            return
        self._closed = True
        try:
            run_in_thread(self.spark.stop, name=_STOP_THREAD, timeout_s=STOP_TIMEOUT_S)
        except WaitTimeoutError:
            _hide_lost_connection()
            self._gateway.proc.kill()
        except Exception:
            if self._gateway.proc.poll() is None:
                raise  # the JVM still runs; one that has exited needs no stop
        finally:
            _end_jvm(self._gateway)
            if self._folder is not None:
                self._folder.delete()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def start_session(
    master: str,
    *,
    properties: Mapping[str, str] = NO_PROPERTIES,
    python_path: Sequence[Path] = (),
    folder: Path | None = None,
    log: Path | None = None,
    speculation: bool = False,
    verbose: bool = False,
    timeout_s: float = START_TIMEOUT_S,
) -> BackfillSession:
    """Start Spark for a master and return when it is ready.

    Args:
        master: `local[*]`, `local[2,4]` (with retries; `local[2]` never retries a task),
            `spark://HOST:PORT`, or another address that Spark takes.
        properties: settings of Spark. They override those of this module, except `SQL_SETTINGS`.
        python_path: folders from which Python workers import, in addition to installed packages.
        folder: the parent of the session's temporary folder, which holds all shuffled frames.
        log: the file to which the JVM and the Python workers write. By default, a file that is
            deleted at the end.
        speculation: let Spark run a second copy of a slow task.
        verbose: write Spark's log of level INFO to standard error. By default, the log of level
            WARN goes to the file.
        timeout_s: seconds after which the start is aborted.

    Raises:
        UserError: the extra is missing, a version is not supported, no Java is found, or a session
            already runs in this process.
        ConfigError: `master` is not the address of a master, or `properties` has a mistyped name.
        SparkError: the master does not answer, or Spark did not start. The message ends with the
            last lines of Spark's log.
    """
    check_installed()
    check_reachable(master)
    java = find_java()
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        message = "A Spark session already runs in this process. Adopt it, or stop it first."
        raise UserError(message)
    session_folder = SessionFolder(folder)
    settings = _settings(
        master, session_folder.path, python_path, speculation=speculation, verbose=verbose
    )
    start = _Start(
        settings=merged(settings, properties) | SQL_SETTINGS,
        names=tuple(properties),
        variables=_variables(master, java.make_home(session_folder.path)),
        log=None if verbose else log or session_folder.path / "log",
    )
    try:
        spark = run_in_thread(
            start.run, name="spark-start", timeout_s=timeout_s, on_interrupt=start.give_up
        )
        check_version("the Spark that started", spark.version)
    except BaseException as error:
        start.give_up()
        failure = start.failure(error, timeout_s)
        session_folder.delete()
        if failure is None:
            raise
        raise failure from error
    return BackfillSession(spark, owned=True, _gateway=start.gateway, _folder=session_folder)


def is_submitted() -> bool:
    """Return whether spark-submit has started this process and a JVM for it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def adopt_session() -> BackfillSession:
    """Return a new session with the settings of a backfill, next to the active session of this
    process or of spark-submit.

    The two share the SparkContext. The new session does not use the SQL settings of the active one.

    Raises:
        UserError: no session is active, the extra is missing, or the version is not supported.
    """
    check_installed()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if is_submitted():
        active = SparkSession.builder.getOrCreate()
    elif SparkContext._active_spark_context is None:
        message = "No Spark session is active in this process. Start a session, or name a master."
        raise UserError(message)
    else:
        active = SparkSession.active()
    check_version("the active Spark session", active.version)
    spark = active.newSession()
    for key, value in SQL_SETTINGS.items():
        spark.conf.set(key, value)
    return BackfillSession(spark, owned=False)


def _settings(
    master: str,
    session_folder: Path,
    python_path: Sequence[Path],
    *,
    speculation: bool,
    verbose: bool,
) -> dict[str, str]:
    options = [
        f"-Djava.io.tmpdir={session_folder / 'tmp'}",
        f"-Dlog4j2.configurationFile={_write_log_settings(session_folder, verbose=verbose)}",
        "-XX:-UsePerfData",  # creates no file in /tmp for monitoring tools
        "-XX:TieredStopAtLevel=1",  # the JVM only moves frames; a better compiler costs more
    ]
    settings = {
        "spark.master": master,
        "spark.app.name": "tidegate backfill",
        "spark.submit.deployMode": "client",
        "spark.speculation": str(speculation).lower(),
        "spark.ui.showConsoleProgress": "false",
        # A task below the threshold opens a file for each receiver, 200 at a parallelism of 200.
        "spark.shuffle.sort.bypassMergeThreshold": "8",
        "spark.local.dir": str(session_folder / "local"),
        "spark.sql.warehouse.dir": str(session_folder / "warehouse"),
        "spark.driver.extraJavaOptions": " ".join(options),
    }
    if python_path:
        settings["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(map(str, python_path))
    if is_on_this_machine(master):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executorEnv.TMPDIR": str(session_folder / "tmp"),
        }
    return settings


def _variables(master: str, java_home: Path) -> dict[str, str]:
    variables = {
        "JAVA_HOME": str(java_home),
        # Workers must have the driver's Python. A user who sets this variable knows its path.
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
    }
    if is_on_this_machine(master):
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    return variables


def _write_log_settings(session_folder: Path, *, verbose: bool) -> Path:
    path = session_folder / "log4j2.properties"
    path.write_text(
        f"rootLogger.level = {'info' if verbose else 'warn'}\n"
        "rootLogger.appenderRef.console.ref = console\n"
        "appender.console.type = Console\n"
        "appender.console.name = console\n"
        "appender.console.target = SYSTEM_ERR\n"
        "appender.console.layout.type = PatternLayout\n"
        "appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss} %p %c{1}: %m%n%ex\n",
        encoding="utf-8",
    )
    return path


@dataclass(slots=True)
class _Start:
    """A start that runs in another thread and may be aborted at any time."""

    settings: dict[str, str]
    names: tuple[str, ...]
    """The names of the settings that the user has given."""
    variables: dict[str, str]
    log: Path | None
    gateway: Any = None
    _aborted: bool = False

    @property
    def what(self) -> str:
        return f"Spark did not start at the master {self.settings['spark.master']}"

    def run(self) -> Any:
        from pyspark import SparkConf, SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        # Every user of the machine can read the command line of the JVM.
        public = {key: value for key, value in self.settings.items() if not is_secret(key)}
        conf = SparkConf(loadDefaults=False).setAll(list(public.items()))
        with _environment(self.variables), _output(self.log) as output:
            try:
                self.gateway = launch_gateway(conf, {"stdout": output, "stderr": output})
            except Exception as error:
                raise spark_error(self.what, error) from error
            if self._aborted:
                _end_jvm(self.gateway)
                return None
            check_names(self.gateway.jvm, self.names, self.settings["spark.master"])
            conf.setAll(list(self.settings.items()))
            try:
                return SparkSession(SparkContext(conf=conf, gateway=self.gateway))
            except Exception as error:
                raise spark_error(self.what, error) from error

    def give_up(self) -> None:
        """End the JVM, now or as soon as `run` has launched it. Then `run` ends too."""
        self._aborted = True
        if self.gateway is not None:
            _end_jvm(self.gateway, at_once=True)

    def failure(self, error: BaseException, timeout_s: float) -> SparkError | None:
        """Return the error to raise in place of the start's error. None means the same error."""
        if isinstance(error, WaitTimeoutError):
            return SparkError(
                f"{self.what} within {timeout_s:g} s (backfill.start_timeout)."
                f"{log_hint()}{self._last_lines()}"
            )
        if isinstance(error, SparkError):
            return SparkError(f"{error}{self._last_lines()}")
        return None

    def _last_lines(self) -> str:
        if self.log is None or not self.log.exists():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line for line in lines if line.strip()][-LOG_LINES_SHOWN:]
        return "".join(f"\n  {line}" for line in lines)


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process while pyspark reads them."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def _output(log: Path | None) -> Iterator[IO[bytes] | None]:
    """Open the log for the JVM, which keeps its own copy open. Yield None if there is no log."""
    if log is None:
        yield None
    else:
        with log.open("ab") as file:
            yield file


def _hide_lost_connection() -> None:
    """Hide what py4j and pyspark report if the JVM is killed while Spark stops.

    The thread that stops Spark loses its connection. py4j logs this with a traceback on the root
    logger, although nothing is wrong: the wave is published or aborted before the session closes.
    """
    logging.getLogger().addFilter(lambda record: record.threadName != _STOP_THREAD)
    warnings.filterwarnings("ignore", message="Unable to cleanly shutdown Spark JVM process")


def _end_jvm(gateway: Any, *, at_once: bool = False) -> None:
    """Wait until the JVM has exited. Kill it if it takes too long, or immediately with `at_once`.

    pyspark keeps the gateway for the next SparkContext of the process. This function removes it
    there, because the gateway's JVM has ended.
    """
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = gateway.proc
    if process is None:
        return  # spark-submit has started the JVM, and it waits for this process
    if at_once:
        process.kill()
    check(process.stdin is not None, "Spark's JVM has no standard input")
    assert process.stdin is not None  # noqa: S101  (for mypy; `check` has already checked it)
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)
    gateway.shutdown()
    with SparkContext._lock:
        if SparkContext._gateway is gateway:
            SparkContext._gateway = None
            SparkContext._jvm = None
            SparkContext._active_spark_context = None
