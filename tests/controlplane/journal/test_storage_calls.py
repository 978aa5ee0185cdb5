"""A storage call that hangs ends the JobMaster, and a restore that brings nothing the attempt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.controlplane.jobmaster.shell import JOB, Shell
from tidegate.commit.effects import ReadObject
from tidegate.controlplane.jobmaster.events import STORAGE_HANGS
from tidegate.controlplane.jobmaster.storage_watch import StorageWatch
from tidegate.controlplane.journal.effect_runner import EffectRunner
from tidegate.controlplane.journal.storage_calls import StorageCalls
from tidegate.drivers.threads import SystemThreads
from tidegate.ids import Attempt
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import SlotHeartbeat
from tidegate.protocol.slot_metrics import SlotMetrics


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


def test_oldest_storage_call_is_reported_as_hanging_after_the_timeout() -> None:
    clock = Clock()
    calls = StorageCalls(cast("Any", clock))
    with calls.during("create a"):
        clock.now_s = 60.0
        with calls.during("get b"):
            clock.now_s = 120.0
            assert calls.hanging(120.0) is None
            clock.now_s = 120.1
            found = calls.hanging(120.0)
    assert found is not None
    assert found.what == "create a"
    assert calls.hanging(0.0) is None


def test_storage_effect_is_a_watched_storage_call() -> None:
    clock = Clock()
    calls = StorageCalls(cast("Any", clock))
    seen: list[object] = []

    def get(path: str) -> None:
        clock.now_s += 200.0
        seen.append(calls.hanging(120.0))

    runner = EffectRunner(
        cast("Any", SimpleNamespace(get=get)),
        cast("Any", None),
        cast("Any", clock),
        SystemThreads(),
        nonce=lambda: "",
        calls=calls,
    )
    runner.perform(ReadObject(path="job/journal/1"))
    assert seen == [("ReadObject job/journal/1", 0.0)]


def test_jobmaster_exits_with_its_own_status_if_a_storage_call_hangs() -> None:
    clock, left = Clock(), list[int]()
    storage = SimpleNamespace(
        store=SimpleNamespace(confirm=lambda: None),
        location="/mnt/x",
        calls=StorageCalls(cast("Any", clock)),
        timeout_s=120.0,
    )
    drivers = SimpleNamespace(
        clock=clock, threads=SystemThreads(), process=SimpleNamespace(exit=left.append)
    )
    watch = StorageWatch(cast("Any", storage), cast("Any", drivers), lambda _: None)
    with storage.calls.during("CreateEntry job/journal/2"):
        clock.now_s = 119.0
        watch.check_storage()
        assert left == []
        clock.now_s = 121.0
        watch.check_storage()
    assert left == [STORAGE_HANGS]


class TestDeployment:
    def beats(self, shell: Shell, restoring: str, restored_bytes: int) -> None:
        metrics = SlotMetrics(restoring=restoring, restored_bytes=restored_bytes)
        beat = SlotHeartbeat(job=JOB, attempt=Attempt(1), ordinal=0, metrics=metrics)
        shell.master.receive(beat)

    def deploying(self) -> Shell:
        shell = Shell()
        shell.claims(1)
        shell.registers(1, 0, 1)
        shell.recovers(1)
        assert shell.master._machine.state is JobState.DEPLOYING
        return shell

    def test_restore_without_progress_fails_the_attempt(self) -> None:
        shell = self.deploying()
        for now_s in range(0, 130, 5):
            shell.now_s = now_s
            self.beats(shell, "files/1/a.sst", 1000)
        assert shell.master._machine.state is JobState.INITIALIZING
        error = shell.master._machine.error
        assert error is not None
        assert "does not answer 'files/1/a.sst'" in str(error)

    def test_long_restore_with_progress_does_not_fail_the_attempt(self) -> None:
        shell = self.deploying()
        for now_s in range(0, 1000, 5):
            shell.now_s = now_s
            self.beats(shell, "files/1/a.sst", 1000 * (now_s // 100))
        assert shell.master._machine.state is JobState.DEPLOYING

    def test_slow_open_of_user_code_does_not_count_as_a_hanging_restore(self) -> None:
        shell = self.deploying()
        for now_s in range(0, 1000, 5):
            shell.now_s = now_s
            self.beats(shell, "", 1000)
        assert shell.master._machine.state is JobState.DEPLOYING
