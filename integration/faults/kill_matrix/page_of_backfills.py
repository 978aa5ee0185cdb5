"""Renders the section of backfills on Spark.

It has a table of strikes for each version, and a table of the other faults.
"""

from __future__ import annotations

from collections.abc import Sequence

from integration.faults.kill_matrix.backfill_cells import IDLE, POINTS, SIGNALS, VICTIMS, Cell
from integration.faults.kill_matrix.report import seconds, table, verdict
from integration.faults.kill_matrix.scenarios import VERSIONS, Result

TITLE = "Backfills on Spark"

LEGEND = f"""
A row is a point of a wave. A process that reaches the point is held there, the victim of the column
is struck, and the held process continues. The letter names the pipeline: k is keyed, and t has two
sinks. A number is the recovery in seconds. Cells have it if the same command recovers.

- **SIGKILL** of the driver or of its JVM ends the command. All of its processes then end by
  themselves, and the same command continues when it is run again. Spark replaces a killed Python
  worker or executor. Each of these cells requires that Spark runs the struck task again.
- **SIGSTOP** of the driver, of its JVM or of a Python worker makes the command hang, and Spark does
  not notice. A second command takes over the job. Then the victim is continued, while a task or the
  driver of the second command is held at a point. The first command must end as fenced. Spark drops
  a frozen executor. An executor that was frozen in a task is continued after the wave, and must
  exit soon.
- An executor is one of two executors of a standalone cluster. The other victims run in
  `local[2,4]`.
- **-**: the cell is impossible, because {IDLE}.
- **.**: the cell was not run yet.
"""

NOT_RUN = "not run yet"


def render(results: Sequence[Result], due: Sequence[str]) -> str:
    """Return the legend and the tables. `due` lists all cells of the section."""
    found = {result.cell: result for result in results}
    parts = [LEGEND.strip()]
    for version in VERSIONS:
        mine = [each for each in results if each.version == version]
        exact = sum(each.right for each in mine)
        wanted = sum(cell.split("/")[1] == version for cell in due)
        figures = f"{len(mine)} of {wanted} run, {exact} exact"
        parts.append(f"### Backfills, Kafka {version}: {figures}, recovery {seconds(mine) or '-'}")
        parts.append(_strikes(found, version))
        parts.append(_others(found, version, due))
    return "\n\n".join(parts)


def _strikes(found: dict[str, Result], version: str) -> str:
    head = [f"{says}, {signal}" for signal in SIGNALS for says in VICTIMS.values()]
    rows = []
    for point in POINTS:
        cells = [
            _cell(found, Cell(version, signal, victim, point))
            for signal in SIGNALS
            for victim in VICTIMS
        ]
        rows.append((f"{point.point}: {point.says}", *cells))
    return table(("point", *head), rows)


def _cell(found: dict[str, Result], cell: Cell) -> str:
    if cell.excuse:
        return "-"
    result = found.get(cell.key)
    if result is None:
        return "."
    said = "exact" if result.right else f"**WRONG**: {result.verdict}"
    return f"{said} {cell.pipeline[0]}" + "".join(f" {each:.1f}" for each in result.recovery_s)


def _others(found: dict[str, Result], version: str, due: Sequence[str]) -> str:
    """Return the table of faults that are not a strike. A fault that was not run yet is shown by
    its name.
    """
    rows = []
    for cell in due:
        _, of, pipeline, kind, name = cell.split("/", 4)
        if of != version or kind in SIGNALS:
            continue
        result = found.get(cell)
        if result is None:
            rows.append((name, pipeline.replace("-", " "), "", NOT_RUN))
        else:
            rows.append((result.name, result.pipeline, result.signal, verdict(result)))
    return table(("what", "pipeline", "fault", "verdict"), rows)
