"""The run check: whether the task reports of a wave belong to one consistent execution.

Spark may run a task again, because a worker died, a shuffle file was lost or a copy was faster.
Later tasks may then have read from different runs of the task, and their states and transactions do
not belong together. The driver publishes a wave only if each task has exactly one run in the whole
graph. There must be one report per task. Each task must have read from every task that it must read
from, and exactly the runs that the reports name.

Each receiver has already proved by markers that it read all rows of a run that were meant for it
(`dataplane/waves/receiving.py`). Both checks together make a wave exact. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.errors import IncompleteWaveError
from tidegate.graph.levels import level_of
from tidegate.graph.plan import PhysicalPlan
from tidegate.protocol.waves import TaskId, TaskReport


def check_runs(plan: PhysicalPlan, reports: Iterable[TaskReport]) -> None:
    """Raise IncompleteWaveError unless every task of the plan has one run in all of `reports`."""
    by_task: dict[TaskId, TaskReport] = {}
    for report in reports:
        if report.task in by_task:
            raise _refused(f"{report.task} has two reports")
        by_task[report.task] = report
    reads = task_inputs(plan)
    if by_task.keys() != reads.keys():
        missing = sorted(reads.keys() - by_task.keys()) or sorted(by_task.keys() - reads.keys())
        raise _refused(f"the tasks with a report are not those of the plan, see {missing[0]}")
    for task, report in by_task.items():
        consumed = dict(report.consumed)
        if consumed.keys() != reads[task] or len(consumed) != len(report.consumed):
            raise _refused(f"{task} did not read from each task that it must read from")
        for sender, run in consumed.items():
            if by_task[sender].run != run:
                raise _refused(
                    f"{task} read run {run} of {sender}, which reports run {by_task[sender].run}"
                )


def task_inputs(plan: PhysicalPlan) -> dict[TaskId, frozenset[TaskId]]:
    """Return every task of the plan with the tasks that it reads from."""
    level = level_of(plan)
    reads: dict[TaskId, set[TaskId]] = {
        TaskId(number, index): set()
        for number in set(level.values())
        for index in range(plan.parallelism)
    }
    for edge in plan.edges:
        for channel in plan.channels(edge):
            receiver = TaskId(level[edge.target], channel.receiver)
            reads[receiver].add(TaskId(level[edge.source], channel.sender))
    return {task: frozenset(inputs) for task, inputs in reads.items()}


def _refused(why: str) -> IncompleteWaveError:
    return IncompleteWaveError(
        f"The reports of the wave are not of one execution: {why}. A task was run again after "
        "others had read from its first run. Nothing is published, and the wave runs again."
    )
