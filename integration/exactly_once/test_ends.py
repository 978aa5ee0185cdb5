"""The end of a job that cannot continue: it is settled, fenced and closed, whatever the reason.

A transaction that no process ends blocks `read_committed` readers until its timeout, 11 minutes by
default. Each test therefore leaves a transaction open and removes something that a restart needs.
When the job has failed, the test checks Kafka with `tidegate txn list`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from integration.support.resource_usage import kind_of
from integration.support.txn_command import Txn, in_folder
from integration.support.user_project import ONE_CHECKPOINT, Folder, Outcome, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(300),
    # kafka-python leaves sockets of failed connections to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SWITCH = """
import os
from pathlib import Path

if Path("{flag}").exists():
    {does}

"""


@pytest.fixture
def txn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Txn:
    return in_folder(monkeypatch, tmp_path)


def make(kafka: EmbeddedKafka, path: Path, does: str) -> tuple[Folder, Path]:
    """Make a folder whose module runs the code `does` at import when the flag file exists."""
    folder, flag = Folder.make(path, kafka.bootstrap), path / "flag"
    old = "from collections.abc import Iterable\n"
    folder.edit("job.py", old, old + SWITCH.format(flag=flag, does=does))
    folder.orders(20)
    return folder, flag


def open_transactions(txn: Txn, folder: Folder) -> list[Any]:
    listed = txn("list", "--job", folder.job, "--json", kafka=folder.bootstrap)
    found: list[Any] = listed.json["transactions"]
    return found


@contextmanager
def with_an_open_transaction(txn: Txn, folder: Folder) -> Iterator[Run]:
    """Yield a run that has written output in an open transaction and takes no checkpoint."""
    with folder.started(bounded=False, config=ONE_CHECKPOINT) as run:
        run.until(lambda: open_transactions(txn, folder), "with an open transaction", 60)
        yield run


def kill_jobmaster(run: Run) -> None:
    (master,) = [
        process
        for process in psutil.Process(run.process.pid).children(recursive=True)
        if kind_of(process) == "jobmaster"
    ]
    os.kill(master.pid, signal.SIGKILL)


def assert_closed(txn: Txn, folder: Folder) -> None:
    assert open_transactions(txn, folder) == []
    last = folder.journal()[-1]
    assert (last["kind"], last["outcome"]) == ("closed", "failed")


def closed_after_a_kill(
    kafka: EmbeddedKafka, txn: Txn, path: Path, does: str, wait_s: float = 60
) -> Outcome:
    """Kill the JobMaster of a run whose module then runs the code `does`, and return the outcome.

    Checks that the job is closed, and that the next run continues with exact output.
    """
    folder, flag = make(kafka, path, does)
    with with_an_open_transaction(txn, folder) as run:
        flag.touch()
        kill_jobmaster(run)
        outcome = run.wait(wait_s)
    assert outcome.code == 1, outcome.err
    assert_closed(txn, folder)
    flag.unlink()
    assert folder.run().code == 0
    folder.assert_exact(20)
    return outcome


@pytest.mark.slow
def test_a_job_whose_module_is_gone_when_its_jobmaster_restarts_is_closed(
    kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    does = 'raise ImportError("the library was removed")'
    outcome = closed_after_a_kill(kafka, txn, tmp_path, does)
    assert "the library was removed" in outcome.err


@pytest.mark.slow
def test_a_job_whose_jobmaster_cannot_be_started_is_closed(
    kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    """The import of the module ends the process five times in a row."""
    outcome = closed_after_a_kill(kafka, txn, tmp_path, "os._exit(3)", wait_s=120)
    assert "ended 5 times in a row before it reported anything" in outcome.err
    assert "transactions may stay open" not in outcome.err


@pytest.mark.slow
def test_a_job_whose_checkpoint_cannot_be_read_is_closed(
    kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    """The run before was killed with all of its processes. The next run is another submission."""
    folder, _ = make(kafka, tmp_path, "pass")
    with folder.started(bounded=False) as run:
        run.until(folder.published, "with a checkpoint", 60)
    manifests = tmp_path / ".tidegate" / "checkpoints" / folder.job / "manifests"
    moved = manifests.rename(tmp_path / "manifests")
    outcome = folder.run()
    assert outcome.code == 2, outcome.err
    assert_closed(txn, folder)
    moved.rename(manifests)
    outcome = folder.run()
    assert outcome.code == 0, outcome.err
    folder.assert_exact(20)


@pytest.mark.slow
def test_a_job_that_fails_while_it_runs_leaves_no_transaction_of_its_own_attempt_open(
    kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    """No later attempt fences the transactions, because a bad record ends the job at once."""
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(20)
    with with_an_open_transaction(txn, folder) as run:
        folder.send("orders", [(b"c", b"no JSON")])
        outcome = run.wait(60)
    assert outcome.code == 1, outcome.err
    assert_closed(txn, folder)
    assert {entry["kind"] for entry in folder.journal()} == {"claim", "closed"}, "one attempt"


SLOW = "        self.total.value +="


def test_terminated_bounded_run_exits_as_stopped_and_the_next_run_continues_exactly(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit("job.py", SLOW, f"        import time\n        time.sleep(0.01)\n{SLOW}")
    folder.orders(2_000)
    with folder.started() as run:
        run.until(folder.published, "with a checkpoint", 60)
        run.process.send_signal(signal.SIGTERM)
        outcome = run.wait(60)
    assert outcome.code == 3, outcome.err
    assert "stopped with a final checkpoint" in outcome.err
    last = folder.journal()[-1]
    assert (last["kind"], last["outcome"], last["stopped"]) == (
        "closed",
        "finished",
        "with_checkpoint",
    )
    assert len(folder.read("totals")) < 2_000, "it had not read everything"
    folder.edit("job.py", "        time.sleep(0.01)\n", "")
    outcome = folder.run()
    assert outcome.code == 0, outcome.err
    folder.assert_exact(2_000)


@pytest.mark.slow
def test_run_stopped_between_two_attempts_reports_that_it_has_no_final_checkpoint(
    kafka: EmbeddedKafka, txn: Txn, tmp_path: Path
) -> None:
    """The next run processes the records after the last checkpoint again, with exact output."""
    folder = Folder.make(tmp_path, kafka.bootstrap)
    fails = '        if self.total.value == 5:\n            raise ValueError("not now")\n'
    folder.edit("job.py", SLOW, fails + SLOW)
    folder.orders(20)
    config = {"restart.strategy": "fixed_delay", "restart.delay": "2min"}
    with folder.started(config=config) as run:
        run.until(lambda: "restarting" in run.err, "restarting", 60)
        run.process.send_signal(signal.SIGTERM)
        outcome = run.wait(60)
    assert outcome.code == 4, outcome.err
    assert "stopped without a final checkpoint" in outcome.err
    assert folder.journal()[-1]["stopped"] == "without_checkpoint"
    assert open_transactions(txn, folder) == []
    folder.edit("job.py", fails, "")
    outcome = folder.run()
    assert outcome.code == 0, outcome.err
    folder.assert_exact(20)
