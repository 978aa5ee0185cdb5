"""Runs all attacks and records the results: `make chaos`. The exit code is 1 if a cell is wrong.

`make chaos CELLS='steps/4.3.0/*'` runs the cells that match. Several patterns are separated by
blanks. `MISSING=1` runs only cells that have no right result yet. Each result is written as soon as
it is known, so a run may be interrupted and continued later.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType, ModuleType

from integration.faults.kill_matrix import (
    backfills,
    broker_faults,
    matrix,
    network_faults,
    storage_faults,
)
from integration.faults.kill_matrix.report import Record
from integration.faults.kill_matrix.scenarios import Result, Scenario, Stage

MODULES: tuple[ModuleType, ...] = (matrix, broker_faults, network_faults, storage_faults, backfills)
"""Modules that provide scenarios."""

DOCS = Path(__file__).parents[3] / "docs" / "evidence"
RIGHT, WRONG, REFUSED, INTERRUPTED = 0, 1, 2, 130


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cells, and return the exit code."""
    given = _options(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    scenarios = [scenario for module in MODULES for scenario in module.scenarios()]
    record = Record(given.record, [cell for scenario in scenarios for cell in scenario.cells])
    chosen = _chosen(scenarios, record, given)
    count = sum(len(cells) for _, cells in chosen)
    if given.list or not count:
        print("\n".join(cell for _, cells in chosen for cell in cells) or "No cell matches.")
        return RIGHT if count else REFUSED
    folder = Path(tempfile.mkdtemp(prefix="tidegate-chaos-"))
    stage = Stage(folder, given.seed, time.strftime("%Y-%m-%d"), _say)
    try:
        wrong = _run(chosen, count, record, stage)
    except KeyboardInterrupt:
        _say("The run was interrupted. All results are written, and all processes have ended.")
        return INTERRUPTED
    finally:
        stage.close()
    if wrong:
        _say(f"{wrong} of {count} cells are wrong. Logs and data are in {folder}.")
        return WRONG
    shutil.rmtree(folder, ignore_errors=True)
    _say(f"All {count} cells are exact.")
    return RIGHT


def results_of(scenario: Scenario, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
    """Yield a result for each of these cells, even if the scenario raises."""
    owed = list(cells)
    try:
        for result in scenario.run(cells, stage):
            owed.remove(result.cell)
            yield result
        reason = "the scenario ended without a result"
    except Exception as error:  # noqa: BLE001  # every error is a verdict
        reason = f"{type(error).__name__}: {error}"
    for cell in owed:
        words = cell.split("/")
        yield Result(
            cell=cell,
            name="/".join(words[3:]) or cell,
            version=words[1] if len(words) > 1 else "",
            pipeline=words[2] if len(words) > 2 else "",
            signal="",
            seed=stage.seed,
            kills=0,
            recovery_s=(),
            verdict=reason,
            date=stage.date,
        )


def _run(
    chosen: Sequence[tuple[Scenario, list[str]]], count: int, record: Record, stage: Stage
) -> int:
    begun, done, wrong = time.monotonic(), 0, 0
    for scenario, cells in chosen:
        for result in results_of(scenario, cells, stage):
            record.add(result)
            done += 1
            wrong += not result.right
            times = ", ".join(f"{each:.1f} s" for each in result.recovery_s)
            seconds = int(time.monotonic() - begun)
            _say(
                f"{seconds // 60}:{seconds % 60:02d}  {done}/{count}  {result.cell}: "
                f"{result.verdict}{f', {times}' if times else ''}"
            )
    return wrong


def _chosen(
    scenarios: Sequence[Scenario], record: Record, given: argparse.Namespace
) -> list[tuple[Scenario, list[str]]]:
    def wanted(cell: str) -> bool:
        known = record.results.get(cell)
        if given.missing and known is not None and known.right:
            return False
        return not given.cells or any(fnmatch.fnmatch(cell, each) for each in given.cells)

    pairs = [(each, [cell for cell in each.cells if wanted(cell)]) for each in scenarios]
    return [(scenario, cells) for scenario, cells in pairs if cells]


def _say(line: str) -> None:
    print(line, flush=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m integration.faults.kill_matrix", description=__doc__
    )
    parser.add_argument("cells", nargs="*", help="Patterns of cells (default: all cells).")
    parser.add_argument(
        "--missing", action="store_true", help="Run only cells that have no right result yet."
    )
    parser.add_argument("--list", action="store_true", help="Print the cells and run none.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of all random choices.")
    parser.add_argument("--record", type=Path, default=DOCS, help="Folder of the results.")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
