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
    cluster = Cluster(delivery=lambda: "good")
    cluster.add_task_manager("x", 2)
    cluster.add_task_manager("y", 2)
    return cluster


def spread(cluster: Cluster, job: str) -> dict[str, int]:
    names = [slot.task_manager for slot in cluster.rm.allocations(JobName(job)).values()]
    return {name: names.count(TaskManagerId(name)) for name in cluster.tms}


def test_a_request_is_spread_over_task_managers(cluster: Cluster) -> None:
    cluster.request("a", 2)
    cluster.run_until_idle()
    assert spread(cluster, "a") == {"x": 1, "y": 1}
    assert cluster.running("a") == [(1, 0), (1, 1)]


def test_request_that_does_not_fit_gets_no_slot_and_lets_a_smaller_request_pass(
    cluster: Cluster,
) -> None:
    cluster.request("a", 5)
    cluster.request("b", 3)
    cluster.run_until_idle()
    assert cluster.running("a") == []
    assert cluster.running("b") == [(1, 0), (1, 1), (1, 2)]
    cluster.add_task_manager("z", 4)
    cluster.run_until_idle()
    assert len(cluster.running("a")) == 5


def test_a_new_attempt_replaces_the_processes_of_the_old_one(cluster: Cluster) -> None:
    cluster.request("a", 4)
    cluster.run_until_idle()
    cluster.request("a", 4)
    cluster.run_until_idle()
    assert cluster.running("a") == [(2, ordinal) for ordinal in range(4)]
    assert cluster.lost == []  # what was stopped on purpose is not reported as lost


def test_an_older_attempt_is_refused(cluster: Cluster) -> None:
    cluster.request("a", 1)
    cluster.request("a", 1)
    cluster.attempts["a"] = 1
    reply = cluster.call_resource_manager(request("a", 1))
    assert isinstance(reply, Refused)
    assert "older" in reply.reason


def test_lost_slot_is_reported_and_replaced_only_on_request(cluster: Cluster) -> None:
    cluster.request("a", 2)
    cluster.run_until_idle()
    cluster.kill(*min(cluster.processes))
    cluster.run_until_idle()
    assert cluster.lost == [("a", 1)]
    assert len(cluster.running("a")) == 1
    cluster.request_again("a", 2)
    cluster.run_until_idle()
    assert cluster.running("a") == [(1, 0), (1, 1)]


def test_all_slots_of_a_lost_task_manager_are_reported(cluster: Cluster) -> None:
    cluster.request("a", 4)
    cluster.run_until_idle()
    cluster.kill_task_manager("x")
    assert cluster.lost == [("a", 1), ("a", 1)]


def test_slots_of_a_job_without_jobmaster_are_stopped(cluster: Cluster) -> None:
    cluster.request("a", 4)
    cluster.run_until_idle()
    cluster.feed_resource_manager(r.JobReleased(job=JobName("a")))
    cluster.run_until_idle()
    assert cluster.running("a") == []
    assert cluster.rm.free_slots() == 4


def test_released_slots_are_stopped_up_to_their_attempt(cluster: Cluster) -> None:
    cluster.request("a", 2)
    cluster.run_until_idle()
    release = ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1))
    cluster.request("a", 2)  # attempt 2 begins before the release of attempt 1 arrives
    assert cluster.call_resource_manager(release) == Acknowledge()
    cluster.run_until_idle()
    assert cluster.running("a") == [(2, 0), (2, 1)]
    assert cluster.released == [("a", 1)], "the slots of a newer attempt are not waited for"


def test_release_does_not_wait_for_slots_of_other_jobs(cluster: Cluster) -> None:
    for job in ("a", "b"):
        cluster.request(job, 2)
    cluster.run_until_idle()
    cluster.call_resource_manager(ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1)))
    cluster.run_until_idle()
    assert cluster.released == [("a", 1)]
    assert cluster.running("b") == [(1, 0), (1, 1)]


def test_jobmaster_is_notified_once_when_its_released_slots_have_stopped() -> None:
    rm = ResourceManager(EPOCH, 0, 1000)
    register(rm, "x")
    (_, start) = rm.handle(r.ResourceRequestReceived(request_id=1, message=request("a", 1)), 0)
    assert isinstance(start, r.StartSlotAt)
    rm.handle(r.SlotStarted(slot=start.slot, allocation_id=start.allocation_id), 0)
    release = ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1))
    stop, reply = rm.handle(r.ResourceRequestReceived(request_id=2, message=release), 0)
    assert isinstance(stop, r.StopSlotAt)
    assert reply == r.Reply(request_id=2, message=Acknowledge())
    told = rm.handle(r.SlotStopped(slot=stop.slot, allocation_id=stop.allocation_id), 0)
    released = SlotsReleased(job=JobName("a"), attempt=Attempt(1))
    assert told == [r.NotifyJobMaster(address="", message=released)]
    assert rm.handle(r.ResourceManagerTick(), 0) == [], "once"


def test_release_without_slots_is_confirmed_at_once_and_never_without_a_jobmaster() -> None:
    rm = ResourceManager(EPOCH, 0, 1000)
    rm.handle(r.ResourceRequestReceived(request_id=1, message=request("a", 1)), 0)
    release = ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(1))
    assert [
        type(i) for i in rm.handle(r.ResourceRequestReceived(request_id=2, message=release), 0)
    ] == [
        r.Reply,
        r.NotifyJobMaster,
    ]
    register(rm, "x")
    (_, start) = rm.handle(
        r.ResourceRequestReceived(request_id=3, message=request("a", 1, attempt=2)), 0
    )
    assert isinstance(start, r.StartSlotAt)
    rm.handle(
        r.ResourceRequestReceived(
            request_id=4, message=ReleaseSlots(job=JobName("a"), epoch=EPOCH, attempt=Attempt(2))
        ),
        0,
    )
    assert rm.handle(r.JobReleased(job=JobName("a")), 0) == []
    assert rm.handle(r.SlotStopped(slot=start.slot, allocation_id=start.allocation_id), 0) == []


def test_slot_lost_message_carries_the_allocation_id() -> None:
    rm = ResourceManager(EPOCH, 0, 1000)
    register(rm, "x")
    (_, start) = rm.handle(r.ResourceRequestReceived(request_id=1, message=request("a", 1)), 0)
    assert isinstance(start, r.StartSlotAt)
    told, stop = rm.handle(
        r.SlotNotStarted(slot=start.slot, allocation_id=start.allocation_id, reason="no memory"), 0
    )
    assert isinstance(told, r.NotifyJobMaster)
    assert isinstance(told.message, SlotLost)
    assert told.message.allocation_id == start.allocation_id
    assert isinstance(stop, r.StopSlotAt)


def test_second_request_of_an_attempt_with_another_slot_count_is_refused(cluster: Cluster) -> None:
    cluster.request("a", 1)
    cluster.run_until_idle()
    refused = Refused(reason="attempt 1 asked for 1 slot")
    assert cluster.call_resource_manager(request("a", 2)) == refused
    assert cluster.running("a") == [(1, 0)]


def test_second_task_manager_with_a_registered_id_is_refused(cluster: Cluster) -> None:
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
        assert cluster.call_resource_manager(join) == Refused(reason="another x is registered")


def test_resource_manager_refuses_a_message_it_does_not_handle(cluster: Cluster) -> None:
    assert cluster.call_resource_manager(Acknowledge()) == Refused(
        reason="ResourceManager takes no Acknowledge"
    )


def test_messages_of_another_epoch_are_refused(cluster: Cluster) -> None:
    for epoch in (EPOCH - 1, EPOCH + 1):
        reply = cluster.call_resource_manager(
            TaskManagerHeartbeat(id=TaskManagerId("x"), epoch=LeaderEpoch(epoch))
        )
        reason = f"leader epoch {epoch} is not {EPOCH}, this JobManager's"
        assert reply == Refused(reason=reason)
    assert (
        cluster.call_resource_manager(TaskManagerHeartbeat(id=TaskManagerId("x"), epoch=EPOCH))
        == Acknowledge()
    )


class TestLocal:
    """TaskManagers that are started here."""

    def test_local_task_managers_are_started_and_replaced_at_once_when_they_exit(self) -> None:
        rm = ResourceManager(EPOCH, 2, 1000)
        assert rm.start(0) == [starts("tm-7-1"), starts("tm-7-2")]
        register(rm, "tm-7-1")
        exited = r.TaskManagerExited(id=TaskManagerId("tm-7-1"), status=-9)
        assert starts("tm-7-3") in rm.handle(exited, 10)
        assert rm.handle(exited, 10) == []

    def test_restart_delay_grows_for_task_managers_that_die_before_they_register(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        pauses = []
        for number in range(1, 9):
            exited = r.TaskManagerExited(id=TaskManagerId(f"tm-7-{number}"), status=1)
            (start,) = rm.handle(exited, 0)
            assert isinstance(start, r.StartTaskManager)
            pauses.append(start.after_ms)
        assert pauses == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]

    def test_reason_why_no_slot_comes_is_known_until_a_slot_has_started(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        rm.handle(r.TaskManagerExited(id=TaskManagerId("tm-7-1"), status=3), 0)
        assert rm.trouble == (
            "TaskManager tm-7-1 ended with status 3 before it started a slot: its logs tm-7-1.log "
            "and tm-7-1.fork_server.log say why."
        )
        no_file = "Cannot start the taskmanager process: no such file."
        rm.handle(r.TaskManagerExited(id=TaskManagerId("tm-7-2"), status=-1, reason=no_file), 0)
        assert rm.trouble == no_file
        register(rm, "tm-7-3")
        rm.handle(r.TaskManagerExited(id=TaskManagerId("tm-7-3"), status=-9), 0)
        assert "was killed by SIGKILL before it started a slot" in rm.trouble

    def test_start_refused_by_the_operating_system_does_not_count_as_a_failure(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        for number in range(1, 9):
            id_ = TaskManagerId(f"tm-7-{number}")
            (start,) = rm.handle(r.TaskManagerExited(id=id_, status=NO_RESOURCES), 0)
            assert start == starts(f"tm-7-{number + 1}", after_ms=REFUSED_START_PAUSE_MS)
        register(rm, "tm-7-9")
        died = r.TaskManagerExited(id=TaskManagerId("tm-7-9"), status=-9)
        assert starts("tm-7-10") in rm.handle(died, 10)

    def test_restart_delay_is_at_most_one_second_for_task_managers_that_started_slots(
        self,
    ) -> None:
        """The TaskManagers themselves can run, but something kills them."""
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        pauses = []
        for number in range(1, 7):
            register(rm, f"tm-7-{number}")
            given = rm.handle(
                r.ResourceRequestReceived(request_id=1, message=request("a", 1, attempt=number)), 0
            )
            (slot,) = [each for each in given if isinstance(each, r.StartSlotAt)]
            rm.handle(r.SlotStarted(slot=slot.slot, allocation_id=slot.allocation_id), 0)
            exited = r.TaskManagerExited(id=TaskManagerId(f"tm-7-{number}"), status=-9)
            begun = rm.handle(exited, 0)
            pauses += [each.after_ms for each in begun if isinstance(each, r.StartTaskManager)]
        assert pauses == [0, *[1_000] * 5]

    def test_task_managers_that_die_together_count_as_one_failure(self) -> None:
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

    def test_restart_delay_resets_after_a_time_without_failures(self) -> None:
        rm = ResourceManager(EPOCH, 2, 1_000_000)
        rm.start(0)
        register(rm, "tm-7-1")
        register(rm, "tm-7-2")
        for number in range(2, 7):
            rm.handle(r.TaskManagerExited(id=TaskManagerId(f"tm-7-{number}"), status=1), 0)
        register(rm, "tm-7-7")
        exited = r.TaskManagerExited(id=TaskManagerId("tm-7-1"), status=-9)
        assert starts("tm-7-8") in rm.handle(exited, RESET_AFTER_MS)

    def test_silent_task_manager_is_replaced_and_then_refused(self) -> None:
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
        (reply,) = rm.handle(r.ResourceRequestReceived(request_id=1, message=heartbeat), 1002)
        assert isinstance(reply, r.Reply)
        lost = "tm-7-1 is not registered: it was lost, and its slots too"
        assert reply.message == Refused(reason=lost)
        assert register(rm, "tm-7-1") == Refused(reason="tm-7-1 was declared lost or has exited")

    def test_task_manager_that_does_not_register_is_disconnected(self) -> None:
        rm = ResourceManager(EPOCH, 1, 1000)
        rm.start(0)
        assert rm.handle(r.ResourceManagerTick(), REGISTRATION_MS_MAX) == []
        (drop,) = rm.handle(r.ResourceManagerTick(), REGISTRATION_MS_MAX + 1)
        assert isinstance(drop, r.DisconnectTaskManager)


class TestStandaloneTaskManagers:
    """TaskManagers that come by themselves."""

    def test_standalone_task_managers_are_neither_started_nor_replaced(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        assert rm.start(0) == []
        join(rm, "x", "host:1")
        (drop,) = rm.handle(r.ResourceManagerTick(), 1001)
        assert isinstance(drop, r.DisconnectTaskManager)
        assert rm.task_managers() == ()

    def test_standalone_task_manager_receives_the_epoch_at_each_registration(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        for _ in range(2):
            assert join(rm, "x", "host:1") == [
                r.Reply(request_id=1, message=TaskManagerAccepted(epoch=EPOCH))
            ]
        assert rm.task_managers() == (("x", 1, 2),)

    def test_registration_of_a_standalone_task_manager_with_a_wrong_epoch_is_refused(self) -> None:
        rm = ResourceManager(EPOCH, 0, 1000)
        wrong = join(rm, "x", "host:1", LeaderEpoch(EPOCH - 1))
        assert isinstance(wrong[0], r.Reply)
        assert isinstance(wrong[0].message, Refused)
        assert rm.task_managers() == ()

    def test_new_task_manager_at_the_same_address_replaces_the_old_one_and_loses_its_slots(
        self,
    ) -> None:
        cluster = Cluster(delivery=lambda: "good")
        for name in ("old", "other"):
            cluster.add_task_manager(name, 2)
        cluster.request("a", 4)
        cluster.run_until_idle()
        told = join(cluster.rm, "new", "old")  # an address is a name in that cluster
        messages = [each.message for each in told if isinstance(each, r.NotifyJobMaster)]
        lost = [message for message in messages if isinstance(message, SlotLost)]
        assert [(each.slot.task_manager, each.reason) for each in lost] == [
            ("old", "TaskManager old is lost: new has taken its address")
        ] * 2
        assert [each.id for each in told if isinstance(each, r.DisconnectTaskManager)] == ["old"]
        assert [name for name, _, _ in cluster.rm.task_managers()] == ["other", "new"]
        cluster.rm.validate()
        refused = cluster.call_resource_manager(
            TaskManagerHeartbeat(id=TaskManagerId("old"), epoch=EPOCH)
        )
        assert isinstance(refused, Refused)

    def test_task_manager_at_another_address_replaces_none(self) -> None:
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
    return rm.handle(r.ResourceRequestReceived(request_id=1, message=message), 0)


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
    (reply,) = rm.handle(r.ResourceRequestReceived(request_id=1, message=message), 0)
    assert isinstance(reply, r.Reply)
    return reply.message
