"""Compares tidegate with loops written by hand, and checks every output.

Both run in turns on one broker:

    make bench                 reads two million records in three rounds, and writes
                               docs/evidence/benchmarks.md
    make bench QUICK=1         reads 300,000 records in one round, takes less than three minutes,
                               and writes no page

`README.md` in this folder explains each figure. The run is void if the costs of the loops do not
have the same proportions as when the goals were set. Then the machine was too busy for a valid
measurement, and the page is not changed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from integration.bench import page
from integration.bench.broker_requests import measure_requests
from integration.bench.cost import SMALL, Rig, measure_cost, measure_intervals
from integration.bench.cpu_breakdown import PIPELINES, measure_cpu, measure_settings
from integration.bench.exchange_micro import measure_exchange
from integration.bench.idle_cost import measure_idle
from integration.bench.latency import measure_latency
from integration.bench.machine import speed
from integration.bench.recovery import measure_recovery
from integration.bench.scaling import measure_scaling
from integration.bench.startup_recovery import IDLE_S, measure_startup_recovery
from integration.bench.window_latency import measure_window_latency
from integration.bench.workloads import WORKLOADS
from tidegate.drivers.kafka.embedded import EmbeddedKafka

PARTS: Final = (
    "intervals",
    "latency",
    "window-latency",
    "moments",
    "idle",
    "requests",
    "scaling",
    "budget",
    "exchange",
    "settings",
    "recovery",
)
NOT_QUICK: Final = frozenset(
    {
        *("windows", "tumbling", "sessions", "intervals", "idle", "requests", "scaling"),
        *("budget", "settings", "recovery"),
    }
)
"""Parts that a quick run skips. They are slow, have no goal, or need more records."""


def main() -> int:
    """Measure, print and write the page. Return 1 if the run is void.

    A wrong output ends the run with a traceback.
    """
    options = _options()
    began = time.monotonic()
    holds = True
    tables = []
    with tempfile.TemporaryDirectory() as scratch:
        print(f"Starting a broker and writing {options.records:,} records.", flush=True)
        with EmbeddedKafka.start(directory=Path(scratch, "kafka"), owned=True) as broker:
            rig = Rig(broker.bootstrap, Path(scratch), options.records, broker.pids)
            for table, counts in measured(rig, options):
                holds &= counts
                told = "" if options.quick else str(speed())  # `speed` takes seconds
                noted = replace(table, note=f"{table.note} {told}".strip())
                tables.append(noted)
                print(noted.plain(), flush=True)
            version = broker.version
    if options.quick:
        print(f"\n{speed()}")
    if options.page:
        print(told_of_page(tables, version, options.records, holds=holds))
    print(f"The benchmark took {time.monotonic() - began:.0f} s.")
    return 0 if holds else 1


def told_of_page(tables: Sequence[page.Table], broker: str, records: int, *, holds: bool) -> str:
    """Write the page unless the run is void. Return a text about what was written."""
    titles = ", ".join(table.title for table in tables)
    if not holds:
        return f"The run is void, so {page.PAGE.name} is not changed. It lacks: {titles}."
    page.write(tables, broker, records)
    parts = [table.title for table in tables if not table.whole]
    left_out = f" Tables with missing rows were not written: {', '.join(parts)}." if parts else ""
    whole = ", ".join(table.title for table in tables if table.whole)
    return f"Tables written to {page.PAGE.name}: {whole or 'none'}.{left_out}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m integration.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--records", type=int, default=2_000_000, help="Number of records of the input."
    )
    parser.add_argument("--rounds", type=int, default=3, help="Number of rounds.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="Read 300,000 records in one round, and write no page.",
    )
    parser.add_argument(
        "--no-page",
        dest="page",
        action="store_false",
        help="Print the tables, and do not write docs/evidence/benchmarks.md.",
    )
    parser.add_argument(
        "--only",
        choices=[*WORKLOADS, *PARTS],
        action="append",
        help="Measure only this part. Repeatable.",
    )
    options = parser.parse_args()
    if options.quick:
        options.records, options.rounds, options.page = 300_000, 1, False
    if options.records <= SMALL or options.rounds < 1:
        parser.error(f"Give more than {SMALL:,} records and at least one round.")
    return options


def measured(  # noqa: C901 - one arm for each part
    rig: Rig, options: Any
) -> Iterator[tuple[page.Table, bool]]:
    """Yield each table as soon as it is measured, and whether it is valid."""
    everything = [*WORKLOADS, *PARTS]
    quick: bool = options.quick
    wanted = options.only or [name for name in everything if not (quick and name in NOT_QUICK)]
    workloads = [name for name in WORKLOADS if name in wanted]
    if workloads:
        tables, holds = measure_cost(rig, workloads, options.rounds)
        for table in tables:
            yield table, holds
    if "intervals" in wanted:
        yield measure_intervals(rig, options.rounds), True
    if "latency" in wanted:
        for table in measure_latency(rig, 3.0, 2.0) if quick else measure_latency(rig, 30.0):
            yield table, True
    if "window-latency" in wanted:
        yield measure_window_latency(rig, *((5.0, 2.0) if quick else (60.0,))), True
    if "moments" in wanted:
        yield measure_startup_recovery(rig, options.rounds, quick=quick), True
    if "idle" in wanted:
        for table in measure_idle(rig, IDLE_S / 2 if quick else 2 * IDLE_S):
            yield table, True
    if "requests" in wanted:
        for table in measure_requests(rig.count, IDLE_S / 2 if quick else IDLE_S):
            yield table, True
    if "scaling" in wanted:
        yield measure_scaling(rig, options.rounds), True
    if "budget" in wanted:
        for workload in PIPELINES:
            yield measure_cpu(rig, workload, options.rounds), True
    if "exchange" in wanted:
        yield measure_exchange(rig.count, options.rounds), True
    if "settings" in wanted:
        yield measure_settings(rig, options.rounds), True
    if "recovery" in wanted:
        yield measure_recovery(), True


if __name__ == "__main__":
    sys.exit(main())
