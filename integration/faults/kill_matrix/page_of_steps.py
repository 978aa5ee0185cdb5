"""The page's section of the matrix itself: a table for each Kafka version and signal."""

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
A row is a point of a step of ARCHITECTURE.md's table; the process that carries the step out stands
exactly there when a process is struck. Where that process itself is struck (*in italics*) it ends
or stops on the spot; for the others it is held at that point until they are struck. Steps of a
recovery are brought about by a kill of the JobMaster after a publication that is not ended yet. The
letters name the pipeline: s stateless, k keyed, t two sinks. A number is the recovery in seconds;
where there is none, no new attempt is due.

- **{KILL}**: the process is killed; for a TaskManager, its slots end with it; for the JobManager,
  everything.
- **{FREEZE}**: the process is stopped until it was declared dead, another has taken its place and
  published, and is then continued: a zombie. It must change nothing and be gone soon. Slots,
  TaskManagers and JobMasters are kept from being killed meanwhile, as if the network were cut; a
  TaskManager is frozen with its slots, as if its machine stood still. A JobManager that stands
  still is declared dead by nobody on one machine (the command that started it waits for its end);
  it is frozen for longer than the heartbeat timeout and goes on.
- **-¹**: impossible: {NO_SLOT}.
- **-²**: impossible: {SLOTS_LEFT}.
- **.**: not run yet.
- Without cells: {"; ".join(f"*{step}*: {why}" for step, why in ELSEWHERE.items())}.

TaskManager and JobManager carry out no step of the protocol themselves; what is tried is their end
while another process does.
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
