"""Two JobManagers of one cluster: one that hung continues in parallel with its replacement.

Method: the real shells, machines and store work on one folder. The test runs the loop by hand, and
the loop does work as soon as it is requested. A JobManager that hung receives its timers before
anything else.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.controlplane.jobmanager.dispatching import A, submission
from tests.controlplane.jobmanager.test_connections import Rpc
from tests.controlplane.parts import registration
from tidegate.config import Config
from tidegate.controlplane.jobmanager import dispatcher_events as j
from tidegate.controlplane.jobmanager.connections import Connections
from tidegate.controlplane.jobmanager.dispatcher import Dispatcher
from tidegate.controlplane.jobmanager.job_record import Phase
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.controlplane.jobmanager.resource_manager import ResourceManager
from tidegate.controlplane.jobmanager.service import JobManager, run_jobmanager
from tidegate.controlplane.loop import PendingRequest
from tidegate.drivers.storage import open_store
from tidegate.drivers.system import SystemEntropy
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import ExternalError, StorageError, TidegateError
from tidegate.ports.blobs import BlobStore
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import Message, SubmitJob
from tidegate.protocol.reports import JobReport, ReportJob
from tidegate.protocol.submission import Submission

CLUSTER = "here"
HERE = msgspec.structs.replace(submission(), cluster=CLUSTER)
DEPOSED = JobReport(job=A, state=JobState.FENCED)
FAILED = JobReport(job=A, state=JobState.FAILED)


class Loop:
    """Does work at once; events and timers wait until they are handled."""

    def __init__(self) -> None:
        self.events: deque[Any] = deque()
        self.timers: list[tuple[float, Any]] = []
        self.stopped = False
        self.now_s = 0.0

    def post(self, event: Any) -> None:
        self.events.append(event)

    def call_later(self, seconds: float, event: Any) -> None:
        self.timers.append((self.now_s + seconds, event))

    def submit(
        self,
        work: Callable[[], Any],
        done: Callable[[Any], Any],
        failed: Callable[[TidegateError], Any],
    ) -> None:
        try:
            event = done(work())
        except TidegateError as error:
            event = failed(error)
        self.events.append(event)

    def stop(self) -> None:
        self.stopped = True


class ByHand:
    """A JobManager of the cluster whose storage is this folder, or this store."""

    def __init__(self, storage: Path | BlobStore, *, session_cluster: bool = True) -> None:
        blobs = open_store(str(storage)) if isinstance(storage, Path) else storage
        self.store = JobStore(blobs, CLUSTER)
        epoch = self.store.claim_epoch(str(id(self)))
        self.loop = Loop()
        self.spawned: list[str] = []
        self.replies: list[Message] = []
        parts: dict[str, Any] = {
            "loop": self.loop,
            "drivers": SimpleNamespace(
                clock=SimpleNamespace(monotonic=lambda: self.loop.now_s, now_ms=lambda: 0)
            ),
            "processes": SimpleNamespace(spawn=self.spawn),
        }
        self.service = JobManager(
            epoch=epoch,
            address="jobmanager",
            config=Config(),
            store=self.store,
            dispatcher=Dispatcher(CLUSTER, epoch, 10**12),
            resources=ResourceManager(epoch, 0, 10**12),
            connections=Connections(Rpc(), SystemThreads()),
            session_cluster=session_cluster,
            **parts,
        )

    def spawn(self, role: str, *_: Any, **__: Any) -> Any:
        self.spawned.append(role)
        return SimpleNamespace(pid=100 + len(self.spawned), kill=lambda: None)

    def instructed(self, instruction: j.Instruction) -> None:
        self.service._execute_dispatcher(instruction)
        self.turn()

    def submit(self, submitted: Submission = HERE, code: bytes = b"") -> None:
        self.ask(SubmitJob(submission=submitted, code=code))

    def ask(self, message: Message) -> None:
        question: Any = SimpleNamespace(put=self.replies.append)
        self.service.handle(PendingRequest(message, question))
        self.turn()

    def turn(self) -> None:
        """Handle what is there, as long as the loop runs."""
        while self.loop.events and not self.loop.stopped:
            self.service.handle(self.loop.events.popleft())

    def goes_on(self, after_s: float) -> None:
        """Time passes; what is due is handled first."""
        self.loop.now_s += after_s
        due = [event for at, event in self.loop.timers if at <= self.loop.now_s]
        self.loop.timers = [(at, each) for at, each in self.loop.timers if at > self.loop.now_s]
        self.loop.events.extendleft(reversed(due))
        self.turn()


START = j.StartJobMaster(job=A, launch_id=1)


def test_replaced_jobmanager_starts_no_jobmaster_and_exits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = ByHand(tmp_path)
    old.instructed(START)
    assert old.spawned == ["jobmaster"]
    new = ByHand(tmp_path)
    with caplog.at_level(logging.ERROR):
        old.instructed(START)
    assert old.spawned == ["jobmaster"], "it would depose the other's"
    assert old.loop.stopped
    assert old.service.replaced, "its exit code says so"
    assert not new.service.replaced
    assert "another JobManager leads cluster here: this one, of epoch 1, exits" in caplog.text
    new.instructed(START)
    assert (new.spawned, new.loop.stopped) == (["jobmaster"], False)


@pytest.mark.parametrize("report", [DEPOSED, FAILED])
def test_replaced_jobmanager_stores_no_result_for_a_job_of_the_new_leader(
    tmp_path: Path, report: JobReport
) -> None:
    old = ByHand(tmp_path)
    old.submit()
    new = ByHand(tmp_path)
    old.instructed(j.StoreResult(report=report, fenced=report is DEPOSED))
    assert old.loop.stopped
    assert [each.job for each, result in new.store.jobs() if result is None] == [A]


def test_leading_jobmanager_restarts_a_job_whose_jobmaster_was_fenced(tmp_path: Path) -> None:
    ByHand(tmp_path)
    new = ByHand(tmp_path)
    new.submit()
    assert new.spawned == ["jobmaster"]
    epoch, pid = new.service.epoch, 101
    new.ask(registration(A, epoch, "h:1", pid))
    new.ask(ReportJob(epoch=epoch, report=msgspec.structs.replace(DEPOSED, jobmaster_pid=pid)))
    new.goes_on(after_s=60.0)
    assert (new.spawned, new.loop.stopped) == (["jobmaster", "jobmaster"], False)


def test_replaced_jobmanager_accepts_no_submit(tmp_path: Path) -> None:
    """The other would not know of it: the client asks again, and comes to that one."""
    old, new = ByHand(tmp_path), ByHand(tmp_path)
    old.submit()
    assert (old.replies, old.loop.stopped) == ([], True)
    assert new.store.jobs() == []


def test_replaced_jobmanager_stops_after_its_periodic_leader_check(tmp_path: Path) -> None:
    old = ByHand(tmp_path)
    old.service.start()
    old.goes_on(after_s=60.0)
    assert not old.loop.stopped
    ByHand(tmp_path)
    old.goes_on(after_s=1.0)
    assert not old.loop.stopped, "the storage is asked now and then"
    old.goes_on(after_s=60.0)
    assert old.loop.stopped


def test_jobmanager_waits_while_storage_does_not_answer_the_leader_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ByHand(tmp_path)
    manager.service.start()
    manager.submit()
    manager.spawned.clear()

    def away(_: object) -> bool:
        raise StorageError("away")

    monkeypatch.setattr(manager.store, "is_leader", away)
    manager.instructed(START)
    for _ in range(3):
        manager.goes_on(after_s=60.0)
    assert (manager.spawned, manager.loop.stopped) == ([], False)
    monkeypatch.undo()
    manager.goes_on(after_s=60.0)
    assert manager.spawned == ["jobmaster"]
    ByHand(tmp_path)
    manager.goes_on(after_s=60.0)
    assert manager.loop.stopped, "it goes on looking"


def test_jobmanager_whose_port_is_in_use_claims_no_epoch(tmp_path: Path) -> None:
    """Or starting a second one by mistake would end the first."""
    leader = ByHand(tmp_path)

    def taken(*_: object) -> Any:
        raise ExternalError("the port is in use")

    drivers: Any = SimpleNamespace(
        blob_store=lambda _: open_store(str(tmp_path)),
        rpc=SimpleNamespace(serve=taken),
        entropy=SystemEntropy(),
        clock=None,
        threads=SystemThreads(),
    )
    processes: Any = None
    with pytest.raises(ExternalError, match="in use"):
        run_jobmanager(CLUSTER, Config(), drivers, processes, announce=print, session_cluster=True)
    assert leader.store.is_leader(leader.service.epoch)


def test_leader_checks_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that hangs must not hold all worker threads."""
    manager = ByHand(tmp_path)
    manager.service.start()
    asked: list[object] = []
    monkeypatch.setattr(manager.loop, "submit", lambda *work: asked.append(work))
    for _ in range(5):
        manager.goes_on(after_s=60.0)
    assert len(asked) == 1


def test_local_jobmanager_makes_no_leader_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = ByHand(tmp_path, session_cluster=False)
    ByHand(tmp_path, session_cluster=False)
    local.service.start()
    local.submit()
    assert local.spawned == ["jobmaster"]
    assert local.service.dispatcher.phase(A) is Phase.STARTING
    asked: list[object] = []
    monkeypatch.setattr(local.loop, "submit", lambda *work: asked.append(work))
    local.goes_on(after_s=60.0)
    assert (asked, local.loop.stopped) == ([], False)
