"""Measures backfills on Spark. `make bench-spark` runs all parts. These commands run less:

    python -m integration.bench.spark_bench --only total --records 1000000 --rounds 3
    python -m integration.bench.spark_bench --quick    # takes a few minutes and writes no page

It runs in the environment of `make test-spark`. Each table goes into docs/evidence/benchmarks.md as
soon as it is measured, and names the command that made it. A comparison of fewer than three rounds
is not written into the page. A wrong output ends the run with a traceback, and no further table is
written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from integration.bench import page
from integration.bench.claims_micro import IDS, measure_claims
from integration.bench.cost import SMALL, Rig
from integration.bench.machine import speed
from integration.bench.reports_micro import measure_reports
from integration.bench.restore_micro import measure_restore
from integration.bench.spark_cost import SPARK_WORKLOADS, compare, measure_lines, table_of, title_of
from integration.bench.waves import measure_fixed
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.drivers.kafka.java import HEAP_MIB

PARTS: Final = (*SPARK_WORKLOADS, "fixed", "lines", "claims", "restore", "reports")
BY_RECORDS: Final = ("Waves: by size", *map(title_of, SPARK_WORKLOADS))
"""Titles of the tables with figures that depend on the number of records."""
STATE_BYTES: Final = 1 << 30
QUICK_STATE_BYTES: Final = 64 << 20
QUICK_IDS: Final = (0, 10_000)
CLAIMS_HEAP_MIB: Final = 2_048
"""The heap of the broker that keeps 600,000 transactional ids: 256 MiB are too small."""
WAVES: Final = {2: 12, 200: 4}
"""Number of waves with almost no records, by parallelism."""
QUICK_WAVES: Final = {2: 5}


def main() -> int:
    options = _options()
    began_s = time.monotonic()

    def tell(line: str) -> None:
        print(f"[{time.monotonic() - began_s:4.0f} s] {line}", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        for table, version in _measured(Path(scratch), options, tell):
            told = f"{table.note} The command was `{_command(options)}`."
            noted = replace(table, note=f"{told} {'' if options.quick else speed()}".strip())
            print(noted.plain(), flush=True)
            if options.page:
                page.write([noted], version, options.records if table.title in BY_RECORDS else None)
    tell("The benchmark has ended.")
    return 0


def _measured(
    scratch: Path, options: argparse.Namespace, tell: Any
) -> Iterator[tuple[page.Table, str]]:
    wanted = options.only or PARTS
    if "restore" in wanted:
        size = QUICK_STATE_BYTES if options.quick else STATE_BYTES
        yield measure_restore(scratch / "restore", size, tell), "not used"
    if "reports" in wanted:
        yield measure_reports(scratch / "reports", tell), "not used"
    if "claims" in wanted:
        with _broker(scratch / "claims", tell, heap_mib=CLAIMS_HEAP_MIB) as broker:
            rig = Rig(broker.bootstrap, scratch / "claims", SMALL)
            ids = QUICK_IDS if options.quick else IDS
            yield measure_claims(rig, broker, ids, tell), broker.version
    if "fixed" in wanted:
        with _broker(scratch / "fixed", tell) as broker:
            waves = QUICK_WAVES if options.quick else WAVES
            yield measure_fixed(scratch / "fixed", broker, waves, tell), broker.version
    if "lines" in wanted:
        with _broker(scratch / "lines", tell) as broker:
            rig = Rig(broker.bootstrap, scratch / "lines", options.records)
            yield measure_lines(rig, tell), broker.version
    workloads = [name for name in SPARK_WORKLOADS if name in wanted]
    if workloads:
        with _broker(scratch / "cost", tell) as broker:
            tell(f"Writing {options.records:,} records.")
            rig = Rig(broker.bootstrap, scratch / "cost", options.records)
            for workload in workloads:
                found = compare(rig, workload, options.rounds, tell)
                yield table_of(found, options.rounds), broker.version


@contextmanager
def _broker(scratch: Path, tell: Any, heap_mib: int = HEAP_MIB) -> Iterator[EmbeddedKafka]:
    tell("Starting a broker.")
    scratch.mkdir()
    with EmbeddedKafka.start(
        "4.3.0", directory=scratch / "kafka", owned=True, heap_mib=heap_mib
    ) as broker:
        yield broker


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m integration.bench.spark_bench",
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
        help="Read 200,000 records in one round, and write no page.",
    )
    parser.add_argument(
        "--no-page",
        dest="page",
        action="store_false",
        help="Print the tables, and do not write docs/evidence/benchmarks.md.",
    )
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="Measure only this part. Repeatable."
    )
    options = parser.parse_args()
    if options.quick:
        options.records, options.rounds, options.page = 200_000, 1, False
    if options.records <= SMALL or options.rounds < 1:
        parser.error(f"Give more than {SMALL:,} records and at least one round.")
    return options


def _command(options: argparse.Namespace) -> str:
    only = "".join(f" --only {name}" for name in options.only or ())
    return (
        f"python -m integration.bench.spark_bench{only} --records {options.records} "
        f"--rounds {options.rounds}"
    )


if __name__ == "__main__":
    sys.exit(main())
