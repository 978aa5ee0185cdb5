"""The benchmark: tidegate beside loops written by hand, in turns, on one broker, outputs checked.

    make bench                 two million records, three rounds; writes docs/benchmarks.md
    make bench QUICK=1         300,000 records, one round, in under three minutes; writes no page

README.md beside it says how each figure is made. The run is void if the loops do not stand to each
other as they did when the goals were set: then the machine was too busy to say anything.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from integration.bench import page
from integration.bench.budget import PIPELINES, measure_budget, measure_settings
from integration.bench.cost import Rig, measure_cost, measure_intervals
from integration.bench.latency import measure_latency
from integration.bench.moments import measure_moments
from integration.bench.workloads import WORKLOADS
from tidegate.drivers.kafka.embedded import EmbeddedKafka

PARTS: Final = ("intervals", "latency", "moments", "budget", "settings")
NOT_QUICK: Final = frozenset({"intervals", "budget", "settings"})
"""What 300,000 records say nothing about, or what takes too long."""


def main() -> int:
    """Measure, print, write the page; 1 if the run is void, and a traceback if an output is
    wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m integration.bench", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="300,000 records, one round")
    parser.add_argument(
        "--only", choices=[*WORKLOADS, *PARTS], action="append", help="parts of it, and of the page"
    )
    options = parser.parse_args()
    if options.quick:
        options.records, options.rounds = 300_000, 1
    holds = True
    with tempfile.TemporaryDirectory() as scratch:
        print(f"starting a broker and writing {options.records:,} records", flush=True)
        with EmbeddedKafka.start(directory=Path(scratch, "kafka"), owned=True) as broker:
            rig = Rig(broker.bootstrap, Path(scratch), options.records)
            tables = []
            for table, counts in measured(rig, options):
                holds &= counts
                tables.append(table)
                print(table.plain(), flush=True)
            if not options.quick:
                page.write(tables, broker.version, options.records)
    return 0 if holds else 1


def measured(rig: Rig, options: Any) -> Iterator[tuple[page.Table, bool]]:
    """Each table as soon as it is there, and whether it counts."""
    parts = [part for part in PARTS if not (options.quick and part in NOT_QUICK)]
    wanted = options.only or [*WORKLOADS, *parts]
    workloads = [name for name in WORKLOADS if name in wanted]
    if workloads:
        yield measure_cost(rig, workloads, options.rounds)
    if "intervals" in wanted:
        yield measure_intervals(rig, options.rounds), True
    if "latency" in wanted:
        yield measure_latency(rig, 5.0 if options.quick else 30.0), True
    if "moments" in wanted:
        yield measure_moments(rig, options.rounds), True
    if "budget" in wanted:
        for workload in PIPELINES:
            yield measure_budget(rig, workload, options.rounds), True
    if "settings" in wanted:
        yield measure_settings(rig, options.rounds), True


if __name__ == "__main__":
    sys.exit(main())
