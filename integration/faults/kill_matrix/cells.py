"""Defines the cells of the matrix.

Each cell has a named step, a process, a signal, a version of Kafka and a pipeline.

One process carries out a step of the commit protocol (the table in
`docs/internals/commit-protocol.md`). It is the step's *carrier*. A cell names the process that is
struck while the carrier is at a point of the step. If that is the carrier itself, it ends or
freezes at the point. Otherwise the carrier is held at the point until the other process is struck.
`Step.excuse` says why a cell is impossible. Each cell has one of the three pipelines, in turn. So
over the versions and signals, every step and process is combined with all three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from integration.faults.kill_matrix.scenarios import VERSIONS

SECTION: Final = "steps"
SLOT, TASKMANAGER, JOBMASTER, JOBMANAGER = "slot", "taskmanager", "jobmaster", "jobmanager"
VICTIMS: Final = {
    SLOT: "slot process",
    TASKMANAGER: "TaskManager",
    JOBMASTER: "JobMaster",
    JOBMANAGER: "JobManager",
}
KILL, FREEZE = "SIGKILL", "SIGSTOP"
PIPELINES: Final = {"stateless": "LargeOrders", "keyed": "Totals", "two sinks": "TwoSinks"}
"""The pipelines of `integration.faults.kill_points.jobs` by their names in the record."""

NO_SLOT = "no slot runs between the end of an attempt and the deployment of the next"
SLOTS_LEFT = "the slots exit before the job is closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A point of a step."""

    step: str
    """Name of the step in the table of the commit protocol."""
    point: str
    """Name of the point in `integration.faults.kill_points.kill_points`."""
    says: str
    """The progress of the carrier at the point."""
    when: str = "middle"
    """The part of a run that reaches the point: `start`, `middle` or `end`. `recovery` means that
    another kill must first cause a recovery.
    """
    stateful: bool = False
    """Whether the point exists only in pipelines with keyed state."""
    slow: bool = False
    """Whether the point is reached only after several checkpoints."""

    @property
    def carrier(self) -> str:
        """The process that carries out the step."""
        return SLOT if self.point.startswith("slot.") else JOBMASTER

    def excuse(self, victim: str) -> str:
        """Return why this process cannot be struck at this point. The text is empty if it can."""
        if victim != SLOT:
            return ""
        if self.point in {"jobmaster.closing", "jobmaster.closed"}:
            return SLOTS_LEFT
        return NO_SLOT if self.when in {"start", "recovery"} else ""


_CLAIM = "claim, read"
_RECOVER = "decide, end named, settle (recovery)"
_FENCE = "fence older attempts; sweep"
_PREPARE = "flush, describe Ongoing (prepare)"
_PUBLISH = "write the manifest, describe, create the entry (publish)"
_COMMIT = "EndTxn, describe CompleteCommit (commit)"
_SETTLE = "write settled or lost"
_FREE = "free transactional ids"
_DELETE = "delete files, trim the journal"
_CLOSE = "final checkpoint, close"

STEPS: Final = (
    Step(step=_CLAIM, point="recovery.read", says="an entry was read", when="recovery"),
    Step(step=_CLAIM, point="recovery.claiming", says="the claim is created next", when="recovery"),
    Step(step=_CLAIM, point="recovery.claimed", says="the claim was created", when="recovery"),
    Step(step=_RECOVER, point="recovery.described", says="one was described", when="recovery"),
    Step(step=_RECOVER, point="recovery.ended", says="one EndTxn was answered", when="recovery"),
    Step(step=_RECOVER, point="recovery.confirmed", says="one is committed", when="recovery"),
    Step(step=_RECOVER, point="recovery.settling", says="`settled` comes next", when="recovery"),
    Step(step=_RECOVER, point="recovery.settled", says="`settled` was written", when="recovery"),
    Step(step=_FENCE, point="recovery.fenced", says="one id was fenced", when="recovery"),
    Step(step=_FENCE, point="jobmaster.swept", says="the old ids were listed", slow=True),
    Step(
        step="fix where a submission begins, until it has published",
        point="recovery.beginning",
        says="the initial offsets are written next",
        when="start",
    ),
    Step(
        step="resolve the restore, enumerate splits",
        point="recovery.enumerated",
        says="the partitions of a topic were requested",
        when="recovery",
    ),
    Step(step="write into a transaction", point="slot.wrote", says="a producer got a batch"),
    Step(step=_PREPARE, point="slot.flushed", says="a transaction was flushed"),
    Step(step=_PREPARE, point="slot.described", says="a transaction was described"),
    Step(step="upload state", point="slot.uploading", says="an upload comes next", stateful=True),
    Step(step="upload state", point="slot.uploaded", says="a file was uploaded", stateful=True),
    Step(step=_PUBLISH, point="jobmaster.complete", says="all slots have acknowledged"),
    Step(step=_PUBLISH, point="jobmaster.manifest", says="the manifest was written"),
    Step(step=_PUBLISH, point="jobmaster.described", says="one transaction was described"),
    Step(step=_PUBLISH, point="jobmaster.publishing", says="the entry is created next"),
    Step(step=_PUBLISH, point="jobmaster.published", says="the entry was created"),
    Step(step=_COMMIT, point="jobmaster.ended", says="one EndTxn was answered"),
    Step(step=_COMMIT, point="jobmaster.confirmed", says="one transaction is committed"),
    Step(step=_SETTLE, point="jobmaster.settling", says="all transactions are committed"),
    Step(step=_SETTLE, point="jobmaster.settled", says="`settled` was written"),
    Step(step=_FREE, point="jobmaster.freeing", says="the slots are notified next"),
    Step(step=_FREE, point="slot.reused", says="an id is used again", slow=True),
    Step(step=_DELETE, point="jobmaster.deleted", says="a file was deleted"),
    Step(step=_DELETE, point="jobmaster.trimmed", says="an entry was deleted", slow=True),
    Step(step=_CLOSE, point="jobmaster.finishing", says="the entry was created", when="end"),
    Step(step=_CLOSE, point="jobmaster.closing", says="the job is closed next", when="end"),
    Step(step=_CLOSE, point="jobmaster.closed", says="the job was closed", when="end"),
)
"""The points in the order of the protocol."""

ELSEWHERE: Final = {
    "roll a publication back": "it needs a broker that has aborted a prepared transaction, "
    "which no kill causes; `integration/exactly_once/test_rollback.py` tests it"
}
"""Reasons of the named steps that have no cells."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One strike."""

    version: str
    pipeline: str
    signal: str
    step: Step
    victim: str

    @property
    def key(self) -> str:
        """Name of the cell in the record."""
        pipeline = self.pipeline.replace(" ", "-")
        words = (SECTION, self.version, pipeline, self.signal, self.step.point, self.victim)
        return "/".join(words)

    @property
    def own(self) -> bool:
        """Whether the carrier itself is struck."""
        return self.step.carrier == self.victim

    @property
    def new_attempt(self) -> bool:
        """Whether the strike ends the attempt, or the recovery, that runs at that time.

        The loss of a TaskManager that runs no slot yet may need no new attempt. A frozen JobManager
        is never declared lost: the command that started it waits for its end.
        """
        if self.step.when == "end" or (self.victim, self.signal) == (JOBMANAGER, FREEZE):
            return False
        return self.victim != TASKMANAGER or self.step.when == "middle"


def all_cells(versions: Sequence[str] = VERSIONS) -> Iterator[Cell]:
    """Yield every possible cell."""
    for version_number, version in enumerate(versions):
        for signal_number, signal in enumerate((KILL, FREEZE)):
            turn = version_number + 2 * signal_number
            for step_number, step in enumerate(STEPS):
                for victim_number, victim in enumerate(VICTIMS):
                    if step.excuse(victim):
                        continue
                    pipelines = list(PIPELINES)[1 if step.stateful else 0 :]
                    pipeline = pipelines[(turn + step_number + victim_number) % len(pipelines)]
                    yield Cell(version, pipeline, signal, step, victim)


# --- a sample of them ---------------------------------------------------------------------------

ESSENTIAL: Final = (
    "slot.flushed",
    "slot.uploaded",
    "jobmaster.publishing",
    "jobmaster.published",
    "jobmaster.ended",
    "jobmaster.settling",
)
"""Points at which the carrier is killed on every version, with every seed."""

FROZEN_POINTS: Final = ("slot.described", "jobmaster.publishing")
"""Points at which the carrier is frozen, on one of the versions."""

ROUND: Final = 3
"""Number of successive seeds whose samples together have every point."""

SAMPLED: Final = {
    ("3.9.1", KILL): "two sinks",
    ("4.3.0", KILL): "keyed",
    ("3.9.1", FREEZE): "keyed",
    ("4.3.0", FREEZE): "stateless",
}
"""The pipeline of each job of the sample."""


def sample(seed: int) -> dict[tuple[str, str], list[Cell]]:
    """Return the essential points on both versions and a third of the others, by version and
    signal.

    Points, victims, versions and signals change from seed to seed. `ROUND` successive seeds have
    every point, and over time all cells are tried.
    """
    jobs: dict[tuple[str, str], dict[str, Cell]] = {job: {} for job in SAMPLED}
    for number, step in enumerate(STEPS):
        for version in VERSIONS:
            if step.point in ESSENTIAL:
                _enter(jobs, version, KILL, step, step.carrier)
        turn = seed + number
        if step.point in FROZEN_POINTS:
            _enter(jobs, VERSIONS[turn % 2], FREEZE, step, step.carrier)
        if step.point in (*ESSENTIAL, *FROZEN_POINTS) or turn % ROUND:
            continue
        victims = [victim for victim in VICTIMS if not step.excuse(victim)]
        version = VERSIONS[(turn // 2) % 2] if step.when != "end" else VERSIONS[turn % 2]
        signal = KILL if step.when == "end" or turn // ROUND % 3 else FREEZE
        _enter(jobs, version, signal, step, victims[(seed // 2 + number) % len(victims)])
    return {job: list(cells.values()) for job, cells in jobs.items()}


def _enter(
    jobs: dict[tuple[str, str], dict[str, Cell]],
    version: str,
    signal: str,
    step: Step,
    victim: str,
) -> None:
    pipeline = SAMPLED[version, signal]
    if step.stateful and pipeline == "stateless":
        version = VERSIONS[0]
        pipeline = SAMPLED[version, signal]
    jobs[version, signal][step.point] = Cell(version, pipeline, signal, step, victim)
