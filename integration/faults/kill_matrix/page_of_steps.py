"""Renders the section of the matrix itself, with a table for each Kafka version and signal."""

from __future__ import annotations

from collections.abc import Sequence

from integration.faults.kill_matrix.cells import (
    ELSEWHERE,
    FREEZE,
    KILL,
    NO_SLOT,
    PIPELINES,
    SLOTS_LEFT,
    STEPS,
    VICTIMS,
    Cell,
    Step,
)
from integration.faults.kill_matrix.report import seconds, table
from integration.faults.kill_matrix.scenarios import VERSIONS, Result

TITLE = "Every named step of the commit protocol"

LEGEND = f"""
A row is a point of a step of the commit protocol. When a process is struck, the process
that carries out the step is exactly at this point. If that process itself is struck (*in italics*),
it ends or stops there. Otherwise it is held at the point until the other process is struck. To
reach a step of a recovery, the JobMaster is first killed after a publication that is not ended yet.
The letter names the pipeline: s is stateless, k is keyed, and t has two sinks. A number is the
recovery in seconds. A cell without a number needs no new attempt.

- **{KILL}**: the process is killed. The slots of a killed TaskManager end with it, and all
  processes end with a killed JobManager.
- **{FREEZE}**: the process is stopped. When it was declared dead and its successor has published,
  the process is continued as a zombie. It must change nothing, and must exit soon. Meanwhile no
  process can kill slots, TaskManagers and JobMasters, as if the network were cut. A TaskManager is
  frozen with its slots, as if its machine hung. On one machine, no process declares a frozen
  JobManager dead, because the command that started it waits for its end. A JobManager is frozen for
  longer than the heartbeat timeout, and then continues.
- **-¹**: the cell is impossible, because {NO_SLOT}.
- **-²**: the cell is impossible, because {SLOTS_LEFT}.
- **.**: the cell was not run yet.
- Steps without cells: {"; ".join(f"*{step}*: {why}" for step, why in ELSEWHERE.items())}.

The TaskManager and the JobManager carry out no step of the protocol. Their cells test their end
while another process carries out a step.
"""

_EXCUSES = {NO_SLOT: "-¹", SLOTS_LEFT: "-²"}


def render(results: Sequence[Result]) -> str:
    """Return the legend and the tables."""
    found = {result.cell: result for result in results}
    parts = [LEGEND.strip()]
    for version in VERSIONS:
        for signal in (KILL, FREEZE):
            mine = [each for each in results if (each.version, each.signal) == (version, signal)]
            parts.append(f"### Kafka {version}, {signal}: {_figures(mine)}")
            parts.append(_table(found, version, signal))
    return "\n\n".join(parts)


def _figures(results: Sequence[Result]) -> str:
    exact = sum(result.right for result in results)
    kills = sum(result.kills for result in results)
    return f"{exact} of {len(results)} exact, {kills} kills, recovery {seconds(results) or 'none'}"


def _table(found: dict[str, Result], version: str, signal: str) -> str:
    rows, before = [], ""
    for step in STEPS:
        first = step.step if step.step != before else ""
        before = step.step
        cells = [_cell(found, version, signal, step, victim) for victim in VICTIMS]
        rows.append((first, f"{step.point}: {step.says}", *cells))
    return table(("step", "point", *VICTIMS.values()), rows)


def _cell(found: dict[str, Result], version: str, signal: str, step: Step, victim: str) -> str:
    excuse = step.excuse(victim)
    if excuse:
        return _EXCUSES[excuse]
    texts = []
    for pipeline in PIPELINES:
        cell = Cell(version, pipeline, signal, step, victim)
        result = found.get(cell.key)
        if result is not None:
            said = "exact" if result.right else f"**WRONG**: {result.verdict}"
            times = "".join(f" {each:.1f}" for each in result.recovery_s)
            text = f"{said} {pipeline[0]}{times}"
            texts.append(f"*{text}*" if cell.own else text)
    return ", ".join(texts) or "."
