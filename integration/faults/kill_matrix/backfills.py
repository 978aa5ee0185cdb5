"""Lists all scenarios of backfills on Spark. They need the environment of `make test-spark`.

This module does not import Spark. A driver is a separate process, and the scenarios that need a
cluster start it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from integration.faults.kill_matrix import page_of_backfills, report
from integration.faults.kill_matrix.backfill_cells import SECTION, Cell, all_cells
from integration.faults.kill_matrix.backfill_faults import FAULTS, Alone
from integration.faults.kill_matrix.backfill_storage import BackfillStorageFaults
from integration.faults.kill_matrix.backfill_strikes import Series
from integration.faults.kill_matrix.scenarios import VERSIONS, Result, Scenario


def scenarios() -> Iterator[Scenario]:
    """Yield a scenario for each version, signal and victim, one for the storage, and one for each
    other fault.
    """
    jobs: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in all_cells():
        jobs.setdefault((cell.version, cell.signal, cell.victim), []).append(cell)
    for number, version in enumerate(reversed(VERSIONS)):
        yield from (Series(cells) for job, cells in jobs.items() if job[0] == version)
        yield BackfillStorageFaults(version, ("keyed", "two sinks")[number])
        yield from (Alone(version, fault) for fault in FAULTS)


def _render(results: Sequence[Result]) -> str:
    return page_of_backfills.render(results, [cell for each in scenarios() for cell in each.cells])


report.SECTIONS[SECTION] = (page_of_backfills.TITLE, _render)
