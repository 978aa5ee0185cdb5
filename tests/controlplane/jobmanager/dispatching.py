"""A Dispatcher that tests drive by hand, and what is submitted to it; no JobManager is around.

`parts.py` has the same for the ResourceManager.
"""

from __future__ import annotations

from typing import Any

from tests.controlplane.parts import registration
from tidegate.controlplane.jobmanager import dispatcher_events as j
from tidegate.controlplane.jobmanager.dispatcher import Dispatcher
from tidegate.ids import JobName, LeaderEpoch
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import GetJob, JobMasterAccepted, Message
from tidegate.protocol.reports import JobReport, ReportJob
from tidegate.protocol.submission import Submission
from tidegate.protocol.versions import PYTHON, TIDEGATE

EPOCH = LeaderEpoch(3)
HEARTBEAT_TIMEOUT_MS = 1_000
A = JobName("a")


class Shell:
    """Hands events to a Dispatcher and keeps what it instructs."""

    def __init__(self) -> None:
        self.machine = Dispatcher("here", EPOCH, HEARTBEAT_TIMEOUT_MS)
        self.now_ms = 0
        self.request_ids = 0
        self.instructions: list[j.Instruction] = []
        self.replies: dict[int, Message] = {}

    def event(self, event: j.Event) -> list[j.Instruction]:
        done = self.machine.handle(event, self.now_ms, 1_000_000 + self.now_ms)
        self.machine.validate()
        for instruction in done:
            if isinstance(instruction, j.Reply):
                assert instruction.request_id not in self.replies, "answered twice"
                self.replies[instruction.request_id] = instruction.message
        self.instructions += done
        return done

    def ask(self, message: Message) -> Message | None:
        self.request_ids += 1
        self.event(j.RequestReceived(request_id=self.request_ids, message=message))
        return self.replies.get(self.request_ids)

    def last(self, kind: type[j.Instruction]) -> j.Instruction:
        return next(i for i in reversed(self.instructions) if isinstance(i, kind))

    def start_number(self) -> int:
        start = self.last(j.StartJobMaster)
        assert isinstance(start, j.StartJobMaster)
        return start.launch_id

    def started(self, pid: int) -> None:
        """The JobMaster's process exists, registers, has imported the job and reports."""
        self.imports(pid)
        self.report(pid)

    def imports(self, pid: int) -> JobMasterAccepted:
        """The JobMaster's process exists, has registered, and imports the job."""
        self.event(j.JobMasterStarted(job=A, launch_id=self.start_number(), pid=pid))
        accepted = self.register(pid)
        assert isinstance(accepted, JobMasterAccepted)
        return accepted

    def register(self, pid: int, epoch: LeaderEpoch = EPOCH) -> Message | None:
        return self.ask(registration(A, epoch, f"master {pid}", pid))

    def report(
        self, pid: int, state: str = "RUNNING", attempt: int = 1, **counted: Any
    ) -> Message | None:
        report = JobReport(
            job=A, state=JobState(state), attempt=attempt, jobmaster_pid=pid, **counted
        )
        return self.ask(ReportJob(epoch=EPOCH, report=report))

    def exits(self, status: int = -9) -> list[j.Instruction]:
        return self.event(j.JobMasterExited(job=A, launch_id=self.start_number(), status=status))

    def shown(self) -> JobReport:
        report = self.ask(GetJob(job=A))
        assert isinstance(report, JobReport)
        return report


def submission(name: JobName = A, cluster: str = "") -> Submission:
    return Submission(
        job=name,
        reference="m:C",
        working_folder="/work",
        params={},
        parallelism=1,
        max_parallelism=128,
        settings={},
        fingerprint="",
        code_digest="",
        python_version=PYTHON,
        tidegate_version=TIDEGATE,
        cluster=cluster,
    )
