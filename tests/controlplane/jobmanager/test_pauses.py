"""How long a JobMaster is awaited that died: one that cannot live longer each time, one that has
worked for a second at most.
"""

from tests.controlplane.jobmanager.dispatching import A, Shell
from tidegate.controlplane.jobmanager import dispatcher_events as j


def test_one_that_dies_again_and_again_is_awaited_longer_and_longer(running: Shell) -> None:
    pauses = []
    for pid in range(101, 106):
        awaits = running.exits()[-1]
        assert isinstance(awaits, j.ScheduleStart)
        pauses.append(awaits.after_ms)
        running.event(j.StartDelayElapsed(job=A, start=awaits.start))
        running.started(pid)
    assert pauses == [0, 1_000, 2_000, 4_000, 8_000]
    running.now_ms += 60_000
    running.report(105)
    awaits = running.exits()[-1]
    assert isinstance(awaits, j.ScheduleStart)
    assert awaits.after_ms == 0


def test_one_that_dies_after_its_checkpoints_is_not_awaited_longer_and_longer(
    running: Shell,
) -> None:
    """The JobMaster itself can run, but something kills it."""
    pauses = []
    for pid in range(100, 106):
        running.report(pid, checkpoints_completed=1)
        awaits = running.exits()[-1]
        assert isinstance(awaits, j.ScheduleStart)
        pauses.append(awaits.after_ms)
        running.event(j.StartDelayElapsed(job=A, start=awaits.start))
        running.started(pid + 1)
    assert pauses == [0, *[1_000] * 5]


def test_one_that_follows_one_with_checkpoints_has_them_not(running: Shell) -> None:
    running.report(100, checkpoints_completed=1)
    pauses = []
    for pid in range(101, 105):
        awaits = running.exits()[-1]
        assert isinstance(awaits, j.ScheduleStart)
        pauses.append(awaits.after_ms)
        running.event(j.StartDelayElapsed(job=A, start=awaits.start))
        running.started(pid)
    assert pauses == [0, 1_000, 2_000, 4_000]
