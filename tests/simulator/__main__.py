"""`python -m tests.simulator`: simulates clusters under faults, or prints the events of one.

Each seed is one cluster. This module only parses and prints.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer

from tests.simulator.run import run_seed
from tests.simulator.seed_runner import Summary, Verdict, simulate
from tests.simulator.trace import TraceEvent
from tidegate.message_text import counted

VIOLATED = 1


def sim(
    seed: Annotated[int | None, typer.Option(help="Replay one seed and print its story.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="A..B, without B; or A.. until stopped. Default: 1..")
    ] = None,
    step: Annotated[
        bool, typer.Option("--step", help="With --seed: every event, one at a time (Enter).")
    ] = False,
    backfills: Annotated[
        bool, typer.Option("--backfills", help="Runs in which some lives of a job are backfills.")
    ] = False,
    event_time: Annotated[
        bool, typer.Option("--event-time", help="Pipelines with event time and timers.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes that simulate.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each seed.")] = False,
) -> None:
    """Simulate clusters in virtual time, with kills, freezes and failing servers, and check them.

    A seed decides everything, so each violation can be replayed.
    Exit code: 0 all seeds are exact, 1 a seed has a violation.

    Example: python -m tests.simulator --seed 4711
    """
    if seed is not None:
        violated = _replay(
            seed, backfills=backfills, event_time=event_time, step=step, as_json=as_json
        )
    else:
        many = _range(seeds or "1..")
        violated = _many(many, workers, backfills=backfills, event_time=event_time, as_json=as_json)
    raise typer.Exit(VIOLATED if violated else 0)


def _range(text: str) -> Iterable[int]:
    first, dots, last = text.partition("..")
    if not (dots and first.isdecimal() and (last.isdecimal() or not last)):
        raise typer.BadParameter(
            f"--seeds {text!r} is not a range: write A..B, or A.. to continue until stopped."
        )
    if not last:
        return itertools.count(int(first))
    if int(last) <= int(first):
        raise typer.BadParameter(
            f"--seeds {text!r} is empty: B is left out, so it must be above A."
        )
    return range(int(first), int(last))


def _replay(seed: int, *, backfills: bool, event_time: bool, step: bool, as_json: bool) -> bool:
    def show(told: TraceEvent) -> None:
        print(told, flush=True)
        if sys.stdin.isatty():
            sys.stdin.readline()

    listen = show if step and not as_json else None
    outcome = run_seed(seed, listen=listen, backfills=backfills, event_time=event_time)
    if as_json:
        body = {
            "seed": seed,
            "violation": outcome.violation,
            "pipeline": outcome.plan.shape.pipeline.__name__,
            "virtual_s": outcome.virtual_s,
            "story": [str(told) for told in outcome.story],
        }
        print(json.dumps(body))
        return outcome.violation is not None
    if not step:
        for told in outcome.story:
            print(told)
    figures = (
        f"{outcome.virtual_s:.1f} s of virtual time, {counted(outcome.turns, 'turn')}, "
        f"{counted(outcome.kills, 'kill')}, {counted(outcome.freezes, 'freeze')}, "
        f"{counted(outcome.attempts, 'attempt')}, {counted(outcome.visible, 'result')}"
    )
    print(f"seed {seed}: {figures}\n{outcome.violation or 'exact'}")
    return outcome.violation is not None


def _many(
    seeds: Iterable[int], workers: int, *, backfills: bool, event_time: bool, as_json: bool
) -> bool:
    last: list[Summary] = []

    def told(verdict: Verdict, summary: Summary) -> None:
        last[:] = [summary]
        if as_json:
            print(msgspec.json.encode(verdict).decode(), flush=True)
        elif verdict.violation is not None:
            print(f"seed {verdict.seed} ({verdict.pipeline}): {verdict.violation}", flush=True)
            options = " --backfills" * backfills + " --event-time" * event_time
            print(
                f"replay it: python -m tests.simulator{options} --seed {verdict.seed}", flush=True
            )
        elif sys.stdout.isatty():
            print(f"\r{summary}", end="", flush=True)

    # Ctrl-C is the normal end of an endless run. The summary is printed nevertheless.
    with contextlib.suppress(KeyboardInterrupt):
        simulate(seeds, workers=workers, told=told, backfills=backfills, event_time=event_time)
    if last and not as_json:
        print(f"{chr(10) if sys.stdout.isatty() else ''}{last[0]}")
    return bool(last and last[0].violations)


app = typer.Typer(add_completion=False)
app.command()(sim)

if __name__ == "__main__":
    app()
