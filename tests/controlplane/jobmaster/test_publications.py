"""A publication on its way from the attempt to the journal thread and back: what it says about a
stop, when it ends the job, what comes late, and what is reported.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from tests.controlplane.jobmaster.shell import SUBTASKS, acknowledged, committed, running
from tidegate.controlplane.jobmaster import events as e
from tidegate.controlplane.journal.journal_worker import CheckpointPublished, PublicationFailed
from tidegate.errors import FencedError
from tidegate.ids import Attempt, CheckpointId
from tidegate.protocol.job_state import JobState


@pytest.mark.parametrize("ends_first", [False, True])
def test_final_checkpoint_of_a_stop_is_published_as_stopped_and_then_closes_the_job(
    *, ends_first: bool
) -> None:
    """A stop that comes after the end of the input has stopped nothing."""
    shell, published = running(), list[bool]()
    journal = cast("Any", shell.master._journal)
    journal.publish = lambda *_, stopped: published.append(stopped)
    (subtask,) = SUBTASKS
    if ends_first:
        shell.master.decide(e.SlotInputEnded(attempt=Attempt(1), subtask=subtask))
    shell.master.decide(e.StopRequested(final_checkpoint=True))
    assert shell.state() is JobState.STOPPING
    shell.master.receive(acknowledged(1))
    assert published == [not ends_first]
    live = shell.master._required_live()
    live.handle_publication(CheckpointPublished(checkpoint=CheckpointId(Attempt(1), 1)))
    assert shell.state() is JobState.STOPPING, "its transactions are not committed yet"
    live.handle_publication(committed(1, final=True))
    assert shell.state() is JobState.CLOSING


def test_checkpoint_that_was_triggered_before_a_stop_is_not_published_as_stopped() -> None:
    shell, published = running(), list[tuple[bool, bool]]()
    journal = cast("Any", shell.master._journal)
    journal.publish = lambda complete, _, stopped: published.append((complete.final, stopped))
    shell.run_until(1.7)
    shell.master.decide(e.StopRequested(final_checkpoint=True))
    shell.master.receive(acknowledged(1))
    assert published == [(False, False)]


def test_late_failure_of_a_publication_does_not_change_the_error() -> None:
    shell = running()
    ended = shell.master._required_live()
    shell.loses(1, 0, allocation_id=3)
    shell.claims(2)
    ended.handle_publication(PublicationFailed(error=FencedError("attempt 2 has claimed the job")))
    assert shell.state() is JobState.INITIALIZING
    assert shell.reported_error() == "Slot tm-1/0 was lost: killed."


def test_at_most_two_checkpoint_reports_are_sent_per_second() -> None:
    shell = running()
    live = shell.master._required_live()
    shell.master.poll()
    shell.run_until(1.7)
    shell.reports.clear()
    for number in range(20):
        shell.run_until(1.7 + number / 10)
        live.handle_publication(committed(number))
    assert len(shell.reports) == 4


def test_last_checkpoint_report_shows_alignment_and_sync_time() -> None:
    shell = running()
    shell.run_until(1.7)
    cast("Any", shell.master._journal).publish = lambda *_, **__: None
    checkpoint = CheckpointId(Attempt(1), 1)
    times = msgspec.structs.replace(acknowledged(1), alignment_ms=40, sync_ms=7)
    shell.master.receive(times)
    live = shell.master._required_live()
    live.handle_publication(CheckpointPublished(checkpoint=checkpoint))
    live.handle_publication(committed(1))
    shell.master._report()
    last = shell.reports[-1].last_checkpoint
    assert last is not None
    assert (last.alignment_ms, last.sync_ms) == (40, 7)
