"""The cells of the matrix: each has a named step, a process, a signal, a version of Kafka and a
pipeline.

One process carries out a step of the commit protocol (the table in ARCHITECTURE.md). It is the
step's *carrier*. A cell names the process that is struck while the carrier is at a point of the
step. If that is the carrier itself, it ends or freezes at the point. Otherwise the carrier is held
at the point until the other process is struck. `Step.excuse` says where a cell is impossible. Each
cell has one of the three pipelines, in turn. So over the versions and signals, every step and
process is combined with all three.
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
SLOTS_LEFT = "the slots have left before the job is closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A point of a step."""

    step: str
    """Name of the step in ARCHITECTURE.md."""
    point: str
    """Name of the point in `integration.faults.kill_points.kill_points`."""
    says: str
    """Progress of the carrier at the point."""
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


_RECOVER = "decide, end named, settle (recovery)"
_PUBLISH = "write the manifest, describe, create the entry (publish)"
_COMMIT = "EndTxn, describe CompleteCommit (commit)"

STEPS: Final = (
    Step(step="claim, read", point="recovery.read", says="an entry was read", when="recovery"),
    Step(step="claim, read", point="recovery.claiming", says="about to create it", when="recovery"),
    Step(step="claim, read", point="recovery.claimed", says="created", when="recovery"),
    Step(step=_RECOVER, point="recovery.described", says="one described", when="recovery"),
    Step(step=_RECOVER, point="recovery.ended", says="one EndTxn answered", when="recovery"),
    Step(step=_RECOVER, point="recovery.confirmed", says="one committed", when="recovery"),
    Step(step=_RECOVER, point="recovery.settling", says="about to settle", when="recovery"),
    Step(step=_RECOVER, point="recovery.settled", says="settled", when="recovery"),
    Step(
        step="fence older attempts; sweep",
        point="recovery.fenced",
        says="one id fenced",
        when="recovery",
    ),
    Step(step="fence older attempts; sweep", point="jobmaster.swept", says="swept", slow=True),
    Step(
        step="fix where a submission begins, until it has published",
        point="recovery.beginning",
        says="about to write it",
        when="start",
    ),
    Step(
        step="resolve the restore, enumerate splits",
        point="recovery.enumerated",
        says="partitions asked for",
        when="recovery",
    ),
    Step(step="write into a transaction", point="slot.wrote", says="a batch was handed over"),
    Step(step="flush, describe Ongoing (prepare)", point="slot.flushed", says="flushed"),
    Step(step="flush, describe Ongoing (prepare)", point="slot.described", says="described"),
    Step(step="upload state", point="slot.uploading", says="about to upload", stateful=True),
    Step(step="upload state", point="slot.uploaded", says="a file uploaded", stateful=True),
    Step(step=_PUBLISH, point="jobmaster.complete", says="all acknowledged"),
    Step(step=_PUBLISH, point="jobmaster.manifest", says="manifest written"),
    Step(step=_PUBLISH, point="jobmaster.described", says="one described"),
    Step(step=_PUBLISH, point="jobmaster.publishing", says="about to create the entry"),
    Step(step=_PUBLISH, point="jobmaster.published", says="entry created"),
    Step(step=_COMMIT, point="jobmaster.ended", says="between two EndTxn"),
    Step(step=_COMMIT, point="jobmaster.confirmed", says="one committed"),
    Step(step="write settled or lost", point="jobmaster.settling", says="all committed"),
    Step(step="write settled or lost", point="jobmaster.settled", says="settled"),
    Step(step="free transactional ids", point="jobmaster.freeing", says="about to tell the slots"),
    Step(step="free transactional ids", point="slot.reused", says="an id used again", slow=True),
    Step(step="delete files, trim the journal", point="jobmaster.deleted", says="a file deleted"),
    Step(
        step="delete files, trim the journal",
        point="jobmaster.trimmed",
        says="an entry deleted",
        slow=True,
    ),
    Step(step="final checkpoint, close", point="jobmaster.finishing", says="published", when="end"),
    Step(
        step="final checkpoint, close", point="jobmaster.closing", says="about to close", when="end"
    ),
    Step(step="final checkpoint, close", point="jobmaster.closed", says="closed", when="end"),
)
"""The points in the order of the protocol."""

ELSEWHERE: Final = {
    "roll a publication back": "it takes a broker that has aborted what is prepared, "
    "which no kill brings about: `integration/exactly_once/test_rollback.py`"
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

COMING_BACK: Final = ("slot.described", "jobmaster.publishing")
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
        if step.point in COMING_BACK:
            _enter(jobs, VERSIONS[turn % 2], FREEZE, step, step.carrier)
        if step.point in (*ESSENTIAL, *COMING_BACK) or turn % ROUND:
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
