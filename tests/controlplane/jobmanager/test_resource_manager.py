"""The ResourceManager's rules, one by one, over a network that behaves."""

import pytest

from tests.controlplane.parts import EPOCH, Cluster
from tidegate.controlplane.jobmanager import resource_manager_events as r
from tidegate.controlplane.jobmanager.backoff import RESET_AFTER_MS
from tidegate.controlplane.jobmanager.resource_manager import REGISTRATION_MS_MAX, ResourceManager
from tidegate.ids import Attempt, JobName, LeaderEpoch, TaskManagerId
from tidegate.ports.processes import NO_RESOURCES, REFUSED_START_PAUSE_MS
from tidegate.protocol.messages import (
    Acknowledge,
    Refused,
    RegisterTaskManager,
    ReleaseSlots,
    RequestSlots,
    SlotLost,
    SlotsReleased,
    TaskManagerAccepted,
    TaskManagerHeartbeat,
)
from tidegate.protocol.versions import PYTHON, TIDEGATE


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(fate=lambda: "good")
    cluster.add_task_manager("x", 2)
    cluster.add_task_manager("y", 2)
    return cluster


def spread(cluster: Cluster, job: str) -> dict[str, int]:
    names = [slot.task_manager for slot in cluster.rm.allocations(JobName(job)).values()]
    return {name: names.count(TaskManagerId(name)) for name in cluster.tms}


def test_a_request_is_spread_over_task_managers(cluster: Cluster) -> None:
    cluster.request("a", 2)
    cluster.settle()
    assert spread(cluster, "a") == {"x": 1, "y": 1}
    assert cluster.running("a") == [(1, 0), (1, 1)]


def test_a_request_that_does_not_fit_waits_whole_and_lets_a_smaller_one_pass(
    cluster: Cluster,
) -> None:
    cluster.request("a", 5)
    cluster.request("b", 3)
    cluster.settle()
    assert cluster.running("a") == []
    assert cluster.running("b") == [(1, 0), (1, 1), (1, 2)]
    cluster.add_task_manager("z", 4)
    cluster.settle()
    assert len(cluster.running("a")) == 5


def test_a_new_attempt_replaces_the_processes_of_the_old_one(cluster: Cluster) -> None:
    cluster.request("a", 4)
    cluster.settle()
    cluster.request("a", 4)
    cluster.settle()
    assert cluster.running("a") == [(2, ordinal) for ordinal in range(4)]
    assert cluster.lost == []  # what was stopped on purpose is not reported as lost


def test_an_older_attempt_is_refused(cluster: Cluster) -> None:
    cluster.request("a", 1)
    cluster.request("a", 1)
    cluster.attempts["a"] = 1
    reply = cluster.to_rm(request("a", 1))
    assert isinstance(reply, Refused)
    assert "older" in reply.reason


def test_a_lost_slot_is_told_and_replaced_only_when_asked(cluster: Cluster) -> None:
    cluster.request("a", 2)
    cluster.settle()
    cluster.kill(*min(cluster.processes))
    cluster.settle()
    assert cluster.lost == [("a", 1)]
    assert len(cluster.running("a")) == 1
    cluster.request_again("a", 2)
    cluster.settle()
    assert cluster.running("a") == [(1, 0), (1, 1)]


def test_all_slots_of_a_lost_task_manager_are_told(cluster: Cluster) -> None:
    cluster.request("a", 4)
    cluster.settle()
    cluster.kill_task_manager("x")
    assert cluster.lost == [("a", 1), ("a", 1)]


def test_slots_of_a_job_without_jobmaster_are_stopped(cluster: Cluster) -> None:
    cluster.request("a", 4)
    cluster.settle()
    cluster.of_rm(r.JobReleased(job=JobName("a")))
    cluster.settle()
    assert cluster.running("a") == []
    assert cluster.rm.free_slots() == 4


def test_released_slots_are_stopped_up_to_their_attempt(cluster: Cluster) -> None:
    cluster.request("a", 2)
    cluster.settle()
    release = ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1))
    cluster.request("a", 2)  # attempt 2 begins before the release of attempt 1 arrives
    assert cluster.to_rm(release) == Acknowledge()
    cluster.settle()
    assert cluster.running("a") == [(2, 0), (2, 1)]
    assert cluster.released == [("a", 1)], "the slots of a newer attempt are not waited for"


def test_the_slots_of_other_jobs_are_not_waited_for(cluster: Cluster) -> None:
    for job in ("a", "b"):
        cluster.request(job, 2)
    cluster.settle()
    cluster.to_rm(ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1)))
    cluster.settle()
    assert cluster.released == [("a", 1)]
    assert cluster.running("b") == [(1, 0), (1, 1)]


def test_a_job_is_told_when_the_slots_that_it_has_released_are_gone() -> None:
    rm = ResourceManager(EPOCH, 0, 1000)
    register(rm, "x")
    (_, start) = rm.handle(r.ResourceRequestReceived(ask=1, message=request("a", 1)), 0)
    assert isinstance(start, r.StartSlotAt)
    rm.handle(r.SlotStarted(slot=start.slot, allocation_id=start.allocation_id), 0)
    release = ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1))
    stop, reply = rm.handle(r.ResourceRequestReceived(ask=2, message=release), 0)
    assert isinstance(stop, r.StopSlotAt)
    assert reply == r.Reply(ask=2, message=Acknowledge())
    told = rm.handle(r.SlotStopped(slot=stop.slot, allocation_id=stop.allocation_id), 0)
    released = SlotsReleased(job=JobName("a"), attempt=Attempt(1))
    assert told == [r.NotifyJobMaster(address="", message=released)]
    assert rm.handle(r.ResourceManagerTick(), 0) == [], "once"


def test_a_job_without_a_slot_is_told_at_once_and_one_without_jobmaster_never() -> None:
    rm = ResourceManager(EPOCH, 0, 1000)
    rm.handle(r.ResourceRequestReceived(ask=1, message=request("a", 1)), 0)
    release = ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1))
    assert [type(i) for i in rm.handle(r.ResourceRequestReceived(ask=2, message=release), 0)] == [
        r.Reply,
        r.NotifyJobMaster,
    ]
    register(rm, "x")
    (_, start) = rm.handle(r.ResourceRequestReceived(ask=3, message=request("a", 1, attempt=2)), 0)
    assert isinstance(start, r.StartSlotAt)
    rm.handle(
        r.ResourceRequestReceived(
            ask=4, message=ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(2))
        ),
        0,
    )
    assert rm.handle(r.JobReleased(job=JobName("a")), 0) == []
    assert rm.handle(r.SlotStopped(slot=start.slot, allocation_id=start.allocation_id), 0) == []


def test_what_is_told_of_a_lost_slot_says_which_use_of_it() -> None:
    rm = ResourceManager(EPOCH, 0, 1000)
    register(rm, "x")
    (_, start) = rm.handle(r.ResourceRequestReceived(ask=1, message=request("a", 1)), 0)
    assert isinstance(start, r.StartSlotAt)
    told, stop = rm.handle(
        r.SlotNotStarted(slot=start.slot, allocation_id=start.allocation_id, reason="no memory"), 0
    )
    assert isinstance(told, r.NotifyJobMaster)
    assert isinstance(told.message, SlotLost)
    assert told.message.allocation_id == start.allocation_id
    assert isinstance(stop, r.StopSlotAt)


def test_an_attempt_does_not_change_how_many_slots_it_needs(cluster: Cluster) -> None:
    cluster.request("a", 1)
    cluster.settle()
    refused = Refused(reason="attempt 1 asked for 1 slots")
    assert cluster.to_rm(request("a", 2)) == refused
    assert cluster.running("a") == [(1, 0)]


def test_two_processes_do_not_have_one_name(cluster: Cluster) -> None:
    for pid, address in ((2, "x"), (1, "elsewhere")):
        join = RegisterTaskManager(
            id=TaskManagerId("x"),
            epoch=EPOCH,
            address=address,
            slots=2,
            pid=pid,
            tidegate_version=TIDEGATE,
            python_version=PYTHON,
        )
        assert cluster.to_rm(join) == Refused(reason="another x is registered")


def test_what_is_not_of_slots_is_refused(cluster: Cluster) -> None:
    assert cluster.to_rm(Acknowledge()) == Refused(reason="ResourceManager takes no Acknowledge")


def test_messages_of_another_epoch_are_refused(cluster: Cluster) -> None:
    for epoch in (EPOCH - 1, EPOCH + 1):
        reply = cluster.to_rm(TaskManagerHeartbeat(id=TaskManagerId("x"), epoch=LeaderEpoch(epoch)))
        reason = f"leader epoch {epoch} is not {EPOCH}, this JobManager's"
        assert reply == Refused(reason=reason)
    assert cluster.to_rm(TaskManagerHeartbeat(id=TaskManagerId("x"), epoch=EPOCH)) == Acknowledge()


class TestLocal:
    """TaskManagers that are started here."""

    def test_missing_ones_are_started_and_lost_ones_replaced_at_once(self) -> None:
        rm = ResourceManager(EPOCH, 2, 1000)
        assert rm.start(0) == [starts("tm-7-1"), starts("tm-7-2")]
        register(rm, "tm-7-1")
        exited = r.TaskManagerExited(id=TaskManagerId("tm-7-1"), status=-9)
        assert starts("tm-7-3") in rm.handle(exited, 10)
        assert rm.handle(exited, 10) == []

    def test_those_that_die_young_are_replaced_more_and_more_slowly(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        pauses = []
        for number in range(1, 9):
            exited = r.TaskManagerExited(id=TaskManagerId(f"tm-7-{number}"), status=1)
            (start,) = rm.handle(exited, 0)
            assert isinstance(start, r.StartTaskManager)
            pauses.append(start.after_ms)
        assert pauses == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]

    def test_those_that_the_system_refuses_are_no_failures(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        for number in range(1, 9):
            id_ = TaskManagerId(f"tm-7-{number}")
            (start,) = rm.handle(r.TaskManagerExited(id=id_, status=NO_RESOURCES), 0)
            assert start == starts(f"tm-7-{number + 1}", after_ms=REFUSED_START_PAUSE_MS)
        register(rm, "tm-7-9")
        died = r.TaskManagerExited(id=TaskManagerId("tm-7-9"), status=-9)
        assert starts("tm-7-10") in rm.handle(died, 10)

    def test_those_that_die_after_they_have_started_slots_are_replaced_within_a_second(
        self,
    ) -> None:
        """The TaskManagers themselves can run, but something kills them."""
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        pauses = []
        for number in range(1, 7):
            register(rm, f"tm-7-{number}")
            given = rm.handle(
                r.ResourceRequestReceived(ask=1, message=request("a", 1, attempt=number)), 0
            )
            (slot,) = [each for each in given if isinstance(each, r.StartSlotAt)]
            rm.handle(r.SlotStarted(slot=slot.slot, allocation_id=slot.allocation_id), 0)
            exited = r.TaskManagerExited(id=TaskManagerId(f"tm-7-{number}"), status=-9)
            begun = rm.handle(exited, 0)
            pauses += [each.after_ms for each in begun if isinstance(each, r.StartTaskManager)]
        assert pauses == [0, *[1_000] * 5]

    def test_those_that_die_together_are_one_failure(self) -> None:
        rm = ResourceManager(EPOCH, 4, 1000)
        begun = rm.start(0)
        pauses = []
        for now_ms in (1, 2, 3):
            begun = [
                start
                for died in begun
                if isinstance(died, r.StartTaskManager)
                for start in rm.handle(r.TaskManagerExited(id=died.id, status=1), now_ms)
            ]
            pauses.append([each.after_ms for each in begun if isinstance(each, r.StartTaskManager)])
        assert pauses == [[0] * 4, [1_000] * 4, [2_000] * 4]

    def test_a_quiet_time_is_forgiving_to_all_of_them(self) -> None:
        rm = ResourceManager(EPOCH, 2, 1_000_000)
        rm.start(0)
        register(rm, "tm-7-1")
        register(rm, "tm-7-2")
        for number in range(2, 7):
            rm.handle(r.TaskManagerExited(id=TaskManagerId(f"tm-7-{number}"), status=1), 0)
        register(rm, "tm-7-7")
        exited = r.TaskManagerExited(id=TaskManagerId("tm-7-1"), status=-9)
        assert starts("tm-7-8") in rm.handle(exited, RESET_AFTER_MS)

    def test_a_silent_one_is_dropped_and_refused_from_then_on(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        register(rm, "tm-7-1")
        assert rm.handle(r.ResourceManagerTick(), 1000) == []
        dropped = rm.handle(r.ResourceManagerTick(), 1001)
        assert [type(instruction) for instruction in dropped] == [
            r.DisconnectTaskManager,
            r.StartTaskManager,
        ]
        heartbeat = TaskManagerHeartbeat(id=TaskManagerId("tm-7-1"), epoch=EPOCH)
        (reply,) = rm.handle(r.ResourceRequestReceived(ask=1, message=heartbeat), 1002)
        assert isinstance(reply, r.Reply)
        lost = "tm-7-1 is not registered: it was lost, and its slots too"
        assert reply.message == Refused(reason=lost)
        assert register(rm, "tm-7-1") == Refused(reason="tm-7-1 was declared lost or has exited")

    def test_one_that_does_not_register_is_killed(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        assert rm.handle(r.ResourceManagerTick(), REGISTRATION_MS_MAX) == []
        (drop,) = rm.handle(r.ResourceManagerTick(), REGISTRATION_MS_MAX + 1)
        assert isinstance(drop, r.DisconnectTaskManager)


class TestStandaloneTaskManagers:
    """TaskManagers that come by themselves."""

    def test_none_is_started_or_replaced_here(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        assert rm.start(0) == []
        join(rm, "x", "host:1")
        (drop,) = rm.handle(r.ResourceManagerTick(), 1001)
        assert isinstance(drop, r.DisconnectTaskManager)
        assert rm.task_managers() == ()

    def test_one_learns_the_epoch_by_registering_and_may_register_again(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        for _ in range(2):
            assert join(rm, "x", "host:1") == [
                r.Reply(ask=1, message=TaskManagerAccepted(epoch=EPOCH))
            ]
        assert rm.task_managers() == (("x", 1, 2),)

    def test_only_a_registration_may_lack_the_epoch_and_a_wrong_one_is_refused(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        wrong = join(rm, "x", "host:1", LeaderEpoch(EPOCH - 1))
        assert isinstance(wrong[0], r.Reply)
        assert isinstance(wrong[0].message, Refused)
        assert rm.task_managers() == ()

    def test_one_at_the_address_of_another_replaces_it_and_its_slots_are_lost_at_once(self) -> None:
        cluster = Cluster(fate=lambda: "good")
        for name in ("old", "other"):
            cluster.add_task_manager(name, 2)
        cluster.request("a", 4)
        cluster.settle()
        told = join(cluster.rm, "new", "old")  # an address is a name in that cluster
        messages = [each.message for each in told if isinstance(each, r.NotifyJobMaster)]
        lost = [message for message in messages if isinstance(message, SlotLost)]
        assert [(each.slot.task_manager, each.reason) for each in lost] == [
            ("old", "TaskManager old is lost: new has taken its address")
        ] * 2
        assert [each.id for each in told if isinstance(each, r.DisconnectTaskManager)] == ["old"]
        assert [name for name, _, _ in cluster.rm.task_managers()] == ["other", "new"]
        cluster.rm.validate()
        refused = cluster.to_rm(TaskManagerHeartbeat(id=TaskManagerId("old"), epoch=EPOCH))
        assert isinstance(refused, Refused)

    def test_one_at_an_address_of_its_own_replaces_nobody(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        join(rm, "x", "host:1")
        join(rm, "y", "host:2")
        assert [name for name, _, _ in rm.task_managers()] == ["x", "y"]


def join(
    rm: ResourceManager, name: str, address: str, epoch: LeaderEpoch | None = None
) -> list[r.Instruction]:
    message = RegisterTaskManager(
        id=TaskManagerId(name),
        epoch=epoch,
        address=address,
        slots=2,
        pid=1,
        tidegate_version=TIDEGATE,
        python_version=PYTHON,
    )
    return rm.handle(r.ResourceRequestReceived(ask=1, message=message), 0)


def starts(name: str, after_ms: int = 0) -> r.StartTaskManager:
    return r.StartTaskManager(id=TaskManagerId(name), after_ms=after_ms)


def request(job: str, count: int, attempt: int = 1) -> RequestSlots:
    return RequestSlots(
        job=JobName(job),
        epoch=EPOCH,
        attempt=Attempt(attempt),
        count=count,
        jobmaster_address="",
    )


def register(rm: ResourceManager, name: str) -> object:
    message = RegisterTaskManager(
        id=TaskManagerId(name),
        epoch=EPOCH,
        address=name,
        slots=1,
        pid=1,
        tidegate_version=TIDEGATE,
        python_version=PYTHON,
    )
    (reply,) = rm.handle(r.ResourceRequestReceived(ask=1, message=message), 0)
    assert isinstance(reply, r.Reply)
    return reply.message
