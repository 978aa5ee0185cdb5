"""Pipelines in files: a script that runs its own pipeline, and commands that name a file.

Each test runs the command of a user, in a folder of a user, and checks the output in Kafka.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from integration.support.brokers import Kafka
from integration.support.running import await_gone
from integration.support.user_project import TOTALS, Folder

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

RUN = """

if __name__ == "__main__":
    print(Totals().run(kafka="{kafka}", checkpoint_interval="300 ms", bounded=BOUNDED))
"""
SCRIPT_S_MAX = 120.0


@pytest.fixture
def folder(kafka: Kafka, tmp_path: Path) -> Folder:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    (folder.path / "job.py").rename(folder.path / "unused.txt")
    (folder.path / "code").mkdir()
    return folder


def script(folder: Folder, text: str = RUN, *, bounded: bool = True) -> Path:
    """Write the script into a folder that is not the working folder."""
    text = text.replace("{kafka}", folder.bootstrap).replace("BOUNDED", str(bounded))
    return folder.write("code/order-totals.py", TOTALS + text)


def start(folder: Folder, *words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(each) for each in words],
        cwd=folder.path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=SCRIPT_S_MAX)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    return process.returncode, out, err


def run(folder: Folder, *words: object) -> tuple[int, str, str]:
    return finish(start(folder, *words))


def test_script_runs_its_own_pipeline_and_a_command_on_the_same_file_continues_the_job(
    folder: Folder,
) -> None:
    folder.orders(30)
    code, out, err = run(folder, sys.executable, script(folder))
    assert code == 0, err
    assert out.startswith(f"RunResult(job='{folder.job}', ended='finished', records_in=30, records")
    folder.assert_exact(30)

    folder.orders(30, first=30)
    done = folder.run(reference="code/order-totals.py")
    assert done.code == 0, done.err
    folder.assert_exact(60)

    folder.orders(30, first=60)
    tidegate = Path(sys.executable).with_name("tidegate")
    words = ("--kafka", folder.bootstrap, "--master", "in-process")
    code, _, err = run(folder, tidegate, "backfill", "code/order-totals.py:Totals", *words)
    assert code == 0, err
    folder.assert_exact(90)


@pytest.mark.slow
def test_script_without_the_guard_is_refused_before_anything_starts(folder: Folder) -> None:
    unguarded = script(folder, RUN.replace('if __name__ == "__main__"', "if True"))
    code, out, err = run(folder, sys.executable, unguarded)
    assert (code, out) == (1, "")
    assert err.rstrip().endswith(
        "PipelineError: Totals.run() is called when order-totals is imported, and every process of "
        'the job imports it. Call run() below `if __name__ == "__main__":`.'
    )
    assert not (folder.path / ".tidegate").exists()


@pytest.mark.slow
def test_failed_job_raises_its_error_with_the_place_in_the_users_code(folder: Folder) -> None:
    folder.orders(3)
    text = TOTALS.replace("self.total.value += order.amount", "self.total.value += 1 // 0")
    caught = """

if __name__ == "__main__":
    from tidegate import TidegateError
    try:
        Totals().run(
            kafka="{kafka}", bounded=True, quiet=True, settings={"restart.strategy": "none"}
        )
    except TidegateError as error:
        print(type(error).__name__, error, *error.__notes__)
""".replace("{kafka}", folder.bootstrap)
    file = folder.write("code/order-totals.py", text + caught)
    code, out, err = run(folder, sys.executable, file)
    assert (code, err) == (0, "")
    assert out.startswith("UserCodeError ")
    assert "step uid 'running' (order-totals.py:32) raised ZeroDivisionError" in out
    assert "self.total.value += 1 // 0" in out


@pytest.mark.slow
def test_ctrl_c_stops_a_script_with_a_checkpoint_and_leaves_no_process(folder: Folder) -> None:
    folder.orders(30)
    process = start(folder, sys.executable, script(folder, bounded=False))
    assert process.stderr is not None
    for line in process.stderr:
        if "running, in 30" in line:
            break
    children = {each.pid for each in psutil.Process(process.pid).children(recursive=True)}
    assert len(children) >= 4  # JobManager, JobMaster, TaskManager and its fork server
    os.kill(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert code == 0, err
    assert "ended='stopped'" in out
    folder.assert_exact(30)
    assert await_gone(children) == set()
