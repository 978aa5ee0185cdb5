"""Runs the tests: `make check`, `make test` and `make test-all` are lists of steps of this module.

`make test` has each kind of thing once and takes a quarter of an hour. `make test-all` adds the
parts: everything that is `slow`, many simulated seeds, Kafka 3.9, containers and Spark. CI runs
`make test` and the part that the hash of the commit chooses (`part-of-commit`), so each part runs
often although no run takes long.

A step that fails does not end the run: the steps after it run too. A test that failed by a time
limit, next to others on a busy machine, runs once more alone. If it passes, the run passes, and its
last lines name the test as unstable. No other failure is repeated.
`integration/support/failures.py` decides which failure is which. The files of a failed step stay,
and the last lines name their folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from integration.support.failures import FILE

ROOT: Final = Path(__file__).parents[1]
FAILED_TESTS: Final = 1
"""The exit status of pytest if all tests ran and some failed."""
TWO_AT_A_TIME: Final = ("--numprocesses", "2", "--dist", "worksteal")
THREE_FILES: Final = ("--numprocesses", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""Tests on brokers wait for much of their time, so three files run on two cores."""
NO_SPARK: Final = ("--ignore", "integration/spark")
QUICK: Final = ("-m", "not slow and not soak")
REST: Final = tuple(
    f"integration/{room}"
    for room in ("cli", "cluster", "connectors", "documentation", "environment", "event_time")
)


@dataclass(frozen=True, slots=True)
class Step:
    """One command: arguments of pytest, or a target of make. `beside` lets the next step start at
    the same time.
    """

    name: str
    words: tuple[str, ...] = ()
    environment: str = ".venv"
    target: str = ""
    beside: bool = False


LINT_AND_TYPES: Final = Step("lint, types", target="lint types", beside=True)
UNIT: Final = Step("unit tests", ("--quiet", *TWO_AT_A_TIME, "--hypothesis-profile", "check"))
DOCS: Final = Step("docs", target="docs", beside=True)
SEEDS: Final = Step(
    "300 seeds",
    (
        "--quiet",
        *("-m", "seeds"),
        "tests/simulator/tests/test_seeds.py::test_seeds_are_exact[150]",
        "tests/simulator/tests/test_backfills.py::test_seeds_are_exact[75]",
        "tests/simulator/tests/test_event_time.py::test_seeds_are_exact[75]",
    ),
)
BROKERS: Final = Step("brokers", ("integration", *NO_SPARK, *THREE_FILES, *QUICK))
SPARK: Final = Step("Spark", ("integration/spark", *QUICK), environment=".venv-spark")
CHECK: Final = (LINT_AND_TYPES, UNIT)
TEST: Final = (LINT_AND_TYPES, DOCS, UNIT, SEEDS, BROKERS, SPARK)

SLOW: Final = ("-m", "slow and not soak and not kafka_39 and not containers")
PARTS: Final[Mapping[int, tuple[Step, ...]]] = {
    1: (Step("many seeds", ("--quiet", *TWO_AT_A_TIME, "-m", "seeds or hypothesis or slow")),),
    2: (Step("exactly once", ("integration/exactly_once", *THREE_FILES, *SLOW)),),
    3: (Step("other slow tests on brokers", (*REST, *THREE_FILES, *SLOW)),),
    4: (
        Step(
            "Kafka 3.9, containers",
            ("integration", *NO_SPARK, *THREE_FILES, "-m", "(kafka_39 or containers) and not soak"),
        ),
    ),
    5: (
        Step(
            "slow tests on Spark",
            ("integration/spark", "--numprocesses", "2", "--dist", "loadfile", *SLOW),
            environment=".venv-spark",
        ),
        Step("the oldest Spark", target="test-spark-oldest"),
    ),
}
"""The parts of `make test-all`; each takes at most 20 minutes on two quiet cores."""


@dataclass(slots=True)
class Result:
    """The end of a step. `unstable` are the tests that passed only alone."""

    step: Step
    passed: bool = False
    took_s: float = 0.0
    unstable: list[str] = field(default_factory=list)
    kept: Path | None = None


def run(steps: Sequence[Step], folder: Path, root: Path = ROOT) -> list[Result]:
    """Run the steps in order, and return how each ended. Files of tests go to `folder`.

    `root` is the folder of the tests.
    """
    results, threads = [], []
    for number, step in enumerate(steps):
        result = Result(step)
        results.append(result)
        if step.beside:
            threads.append(threading.Thread(target=_make, args=(result,)))
            threads[-1].start()
        elif step.target:
            _make(result)
        else:
            _say(f"== {step.name}: pytest {' '.join(step.words)}")
            _pytest(result, folder / str(number), root)
    for thread in threads:
        thread.join()
    return results


def _make(result: Result) -> None:
    """Run a target of make, and print its output as soon as it ends."""
    begun = time.monotonic()
    done = subprocess.run(
        ["make", "--no-print-directory", *result.step.target.split()],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    result.took_s = time.monotonic() - begun
    result.passed = done.returncode == 0
    said = "passed" if result.passed else f"failed:\n{done.stdout}"
    _say(f"== {result.step.name}: {said}")


def _pytest(result: Result, folder: Path, root: Path) -> None:
    """Run pytest, and once more the tests that failed by a time limit only."""
    begun = time.monotonic()
    status, failures = _once(result.step, result.step.words, folder, root)
    result.passed = status == 0
    if status == FAILED_TESTS and failures and all(failures.values()):
        late = list(failures)
        _say(f"== {len(late)} failed by a time limit only, and run once more alone")
        status, _ = _once(
            result.step, ("-m", "", *late), folder.with_name(f"{folder.name}-alone"), root
        )
        result.passed = status == 0
        result.unstable = late if result.passed else []
    result.took_s = time.monotonic() - begun
    if result.passed and not result.unstable:
        shutil.rmtree(folder, ignore_errors=True)
        _report_of(folder).unlink(missing_ok=True)
    else:
        result.kept = folder


def _once(
    step: Step, words: Sequence[str], folder: Path, root: Path
) -> tuple[int, dict[str, bool]]:
    """Run pytest, and return its exit status and the failed tests: whether each was only late."""
    folder.mkdir(parents=True)
    report = _report_of(folder)
    # A short path: tests make Unix sockets below it, whose paths have at most 107 bytes.
    options = (FILE, str(report), "--basetemp", str(folder))
    done = subprocess.run(
        [str(ROOT / step.environment / "bin" / "pytest"), *words, *options], cwd=root, check=False
    )
    return done.returncode, json.loads(report.read_text()) if report.exists() else {}


def _report_of(folder: Path) -> Path:
    """Return the file with the failed tests whose files are in `folder`."""
    return folder.with_suffix(".json")


def _tell(results: Sequence[Result]) -> bool:
    """Print how each step ended, and return whether all passed."""
    _say("")
    for each in results:
        minutes, seconds = divmod(round(each.took_s), 60)
        _say(f"{each.step.name:30} {minutes:3}:{seconds:02}  {_PASSED[each.passed]}")
    for each in results:
        for test in each.unstable:
            _say(f"unstable: {test} was late next to other tests and passed alone")
        if each.kept is not None:
            _say(f"the files of these tests are kept in {each.kept}")
    return all(each.passed for each in results)


_PASSED: Final = {True: "passed", False: "FAILED"}


def part_of(commit: str) -> int:
    """Return the part that CI runs for a commit, from its hash."""
    return int(commit[:8], 16) % len(PARTS) + 1


def main(words: Sequence[str] | None = None) -> int:
    """Run what the arguments name, and return the exit code: 0 if every step passed."""
    parser = argparse.ArgumentParser(prog="python -m integration.run_tests", description=__doc__)
    parser.add_argument("what", choices=("check", "test", "test-all", "part-of-commit"))
    parser.add_argument("--part", type=int, choices=sorted(PARTS), help="only this part")
    asked = parser.parse_args(words)
    if asked.what == "part-of-commit":
        head = ["git", "rev-parse", "HEAD"]
        _say(str(part_of(subprocess.check_output(head, cwd=ROOT, text=True))))
        return 0
    if asked.part is not None:
        _say(f"== part {asked.part} of {len(PARTS)}; make test-all PART={asked.part} repeats it")
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    passed = _tell(run(_steps(asked.what, asked.part), folder))
    if not any(folder.iterdir()):
        folder.rmdir()
    return 0 if passed else 1


def _steps(what: str, part: int | None) -> tuple[Step, ...]:
    if part is not None:
        return PARTS[part]
    if what == "check":
        return CHECK
    parts = tuple(step for number in sorted(PARTS) for step in PARTS[number])
    return TEST if what == "test" else (*TEST, *parts)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
