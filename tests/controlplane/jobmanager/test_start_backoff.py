"""How long a JobMaster is awaited that died: one that cannot live longer each time, one that has
worked for a second at most.
"""

from tests.controlplane.jobmanager.dispatching import A, Shell
from tidegate.controlplane.jobmanager import dispatcher_events as j


def test_restart_delay_doubles_while_the_jobmaster_keeps_dying(running: Shell) -> None:
    pauses = []
    for pid in range(101, 106):
        awaits = running.exits()[-1]
        assert isinstance(awaits, j.ScheduleStart)
        pauses.append(awaits.after_ms)
        running.event(j.StartDelayElapsed(job=A, launch_id=awaits.launch_id))
        running.started(pid)
    assert pauses == [0, 1_000, 2_000, 4_000, 8_000]
    running.now_ms += 60_000
    running.report(105)
    awaits = running.exits()[-1]
    assert isinstance(awaits, j.ScheduleStart)
    assert awaits.after_ms == 0


def test_restart_delay_stays_at_one_second_if_checkpoints_completed(
    running: Shell,
) -> None:
    """The JobMaster itself can run, but something kills it."""
    pauses = []
    for pid in range(100, 106):
        running.report(pid, checkpoints_completed=1)
        awaits = running.exits()[-1]
        assert isinstance(awaits, j.ScheduleStart)
        pauses.append(awaits.after_ms)
        running.event(j.StartDelayElapsed(job=A, launch_id=awaits.launch_id))
        running.started(pid + 1)
    assert pauses == [0, *[1_000] * 5]


def test_checkpoints_of_an_earlier_jobmaster_do_not_limit_later_restart_delays(
    running: Shell,
) -> None:
    running.report(100, checkpoints_completed=1)
    pauses = []
    for pid in range(101, 105):
        awaits = running.exits()[-1]
        assert isinstance(awaits, j.ScheduleStart)
        pauses.append(awaits.after_ms)
        running.event(j.StartDelayElapsed(job=A, launch_id=awaits.launch_id))
        running.started(pid)
    assert pauses == [0, 1_000, 2_000, 4_000]
