"""A signal handler of user code raises while the loop of a slot or of the JobMaster runs: the job
restarts, and all totals are there once. A slot also ends by SIGTERM if user code ignores it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration.support.running import await_gone
from integration.support.user_project import TOTALS, Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

HANDLER = """
import signal
from pathlib import Path

raised = Path("{folder}/raised")


def fail(number, frame):
    if len(raised.read_text()) < 2:
        raised.write_text(raised.read_text() + "x")
        raise KeyError(6)


def fail_in_the_jobmaster(number, frame):
    raise KeyError(7)


signal.signal(signal.SIGUSR1, fail_in_the_jobmaster)


"""

OPEN = """
    def open(self) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, fail)
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    def process("""


def test_job_restarts_after_a_signal_handler_has_raised_and_its_slots_end_by_sigterm(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, TOTALS)
    raised = tmp_path / "raised"
    raised.write_text("")
    folder.edit("job.py", "from collections.abc", HANDLER + "from collections.abc")
    folder.edit("job.py", "{folder}", str(tmp_path))
    folder.edit("job.py", "\n    def process(", OPEN)
    folder.orders(30)
    with folder.started(bounded=False) as run:
        run.until(lambda: raised.read_text() == "xx", "two exceptions of the handler", 60)
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input", 60)
        (slot,) = run.until(run.slots, "a slot")
        os.kill(slot, signal.SIGTERM)
        assert await_gone({slot}) == set()
        folder.orders(30, first=30)
        run.until(lambda: len(folder.read("totals")) == 60, "at the end of its input", 60)
        (jobmaster,) = run.processes("jobmaster")
        os.kill(jobmaster, signal.SIGUSR1)
        run.until(lambda: "for SIGUSR1 raised KeyError: 7" in folder.logs(), "told of the error")
        folder.orders(30, first=60)
        run.until(lambda: len(folder.read("totals")) == 90, "at the end of its input", 60)
        assert run.processes("jobmaster") == [jobmaster]
        assert run.stop().code == 0
    folder.assert_exact(90)
    assert "A handler of user code for SIGALRM raised KeyError: 6" in folder.logs()
