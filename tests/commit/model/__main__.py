"""Searches the models at several bounds, then every broken variant: `python -m
tests.commit.model [--deep] [--only NAME]`. It prints states, and the shortest counterexamples.

Exit status 1 where a sound case has a violation, or a broken one does not show what it must.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.commit.model.cases import BROKEN, DEEP, LARGER, LARGER_BROKEN, SMALL, Case


def show(case: Case) -> bool:
    """Search and print; whether it found what it must find."""
    began_s = time.monotonic()
    result = case.run()
    took_s = time.monotonic() - began_s
    print(f"{case.name}: {result.violation or 'holds'} [{result.states} states, {took_s:.1f} s]")
    for number, step in enumerate(result.run, 1):
        print(f"    {number}. {step}")
    sys.stdout.flush()
    return result.violation.startswith(case.expected_violation) and bool(result.violation) == bool(
        case.expected_violation
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.commit.model")
    parser.add_argument("--deep", action="store_true", help="larger bounds too: 2 GB")
    parser.add_argument("--only", metavar="NAME", default="", help="cases with this in their name")
    options = parser.parse_args()
    sound = SMALL + LARGER + (DEEP if options.deep else ())
    cases = [case for case in sound + BROKEN + LARGER_BROKEN if options.only in case.name]
    wrong = [case.name for case in cases if not show(case)]
    for name in wrong:
        print(f"NOT AS EXPECTED: {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
