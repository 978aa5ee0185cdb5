"""Compares the cost of a job in two versions of the code, which run at the same time.

The speed of a virtual machine changes from minute to minute, often by more than a change of the
code is worth. Two jobs that run at the same time see the same machine: their ratio differed by
2 % between rounds in which both costs differed by 30 %. Both read the same input, from one broker,
and each output is checked.

    git worktree add /tmp/before HEAD~1
    python -m integration.bench.two_trees /tmp/before --workload total

The ratio says which version is cheaper while two jobs share the machine. `cost.py` measures what a
job costs. The other version must know the settings and the pipelines of the present one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from integration.bench.cost import ROOT, SECOND, SMALL, Rig
from integration.bench.process_tree import measure
from integration.bench.workloads import WORKLOADS, Workload
from tidegate.drivers.kafka.embedded import EmbeddedKafka

PIPELINES: Final = "integration/bench/pipelines.py"


def compare(
    rig: Rig, workload: Workload, trees: tuple[Path, Path], rounds: int
) -> Iterator[tuple[float, float]]:
    """Yield the CPU microseconds per record of both versions, for each round.

    The versions take turns in starting first. Raise RuntimeError if a run fails or is wrong.
    """
    for number in range(rounds):
        outputs = [rig.fresh("out") for _ in trees]
        with ThreadPoolExecutor(len(trees)) as pool:
            runs = {
                place: pool.submit(_run, rig, workload, trees[place], *outputs[place])
                for place in ((0, 1) if number % 2 == 0 else (1, 0))
            }
        # The outputs are read when both runs have ended, so that this slows down neither of them.
        for sink, _ in outputs:
            rig.check(workload, sink, rig.count)
        yield runs[0].result(), runs[1].result()


def _run(rig: Rig, workload: Workload, tree: Path, sink: str, folder: Path) -> float:
    """Run a version to its end, and return its CPU microseconds per record."""
    command = rig.command("tidegate", workload, "bench-in", sink, rig.count, SECOND)
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{tree / 'framework'}"}
    usage = measure(command, folder, environment)
    rig.check_run("tidegate", workload, usage, folder)
    return usage.cpu_s / rig.count * 1e6


def main() -> int:
    """Compare and print each round, and the median of the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m integration.bench.two_trees",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("before", type=Path, help="The other version: a folder with its files.")
    parser.add_argument("--workload", choices=list(WORKLOADS), default="total")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    before: Path = options.before.resolve()
    if not (before / PIPELINES).is_file():
        parser.error(f"{before} has no {PIPELINES}. Give the folder of another version.")
    if options.records <= SMALL or options.rounds < 1:
        parser.error(f"Give more than {SMALL:,} records and at least one round.")
    ratios = []
    with (
        tempfile.TemporaryDirectory() as scratch,
        EmbeddedKafka.start(directory=Path(scratch, "kafka"), owned=True) as broker,
    ):
        rig = Rig(broker.bootstrap, Path(scratch), options.records)
        workload = WORKLOADS[options.workload]
        for first, second in compare(rig, workload, (before, ROOT), options.rounds):
            ratios.append(second / first)
            print(f"{first:.2f} -> {second:.2f} us a record: {second / first:.3f} x", flush=True)
    print(f"{workload.name}: median {statistics.median(ratios):.3f} x the cost of {before}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
