"""Prints the plan, the waves and the end of `tidegate backfill`, as text or as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

from tidegate.backfill.driver import WaveCompleted
from tidegate.backfill.plan import BackfillPlan
from tidegate.message_text import counted, utc_text
from tidegate.terminal.display import late_records, print_status

SIZES: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
UNIT: Final = 1024
MINUTE_S, HOUR_S = 60, 3600


class BackfillText:
    """The output for people, as sentences on stderr."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._waves = self._read = 0
        self._left = 0
        self._seconds = 0.0

    def plan(self, plan: BackfillPlan) -> None:
        """Print the plan of the backfill."""
        self._left = plan.offsets
        for line in plan_lines(plan):
            print_status(line)

    def wave(self, wave: WaveCompleted) -> None:
        """Report that a wave is committed, with its rate and the estimated time that is left."""
        self._waves += 1
        self._read += self._left - wave.offsets_left
        self._left = wave.offsets_left
        self._seconds += wave.seconds
        rate = self._read / self._seconds if self._seconds else 0.0
        left = f", about {duration(self._left / rate)}" if self._left and rate else ""
        print_status(
            f"{self._job}: wave {self._waves} committed: {counted(wave.records_in, 'record')} in,"
            f" {wave.records_out:,} out in {duration(wave.seconds)}"
            f" ({wave.records_in / max(wave.seconds, 1e-3):,.0f} a second){_bad(wave)};"
            f" {counted(self._left, 'offset')} left{left}"
        )

    def progress(self, finished: int, tasks: int) -> None:
        """Report how many tasks of the present wave have finished."""
        print_status(
            f"{self._job}: wave {self._waves + 1}: {finished} of {counted(tasks, 'task')} finished"
        )

    def stopping(self) -> None:
        """Report the first Ctrl-C."""
        print_status(f"{self._job}: stopping after this wave (Ctrl-C again abandons the wave)")

    def stopped(self) -> None:
        """Report that the command ended after a wave."""
        print_status(
            f"{self._job}: the backfill stopped after a wave. To continue, run the same command"
            " without --new."
        )

    def abandoning(self) -> None:
        """Report the second Ctrl-C."""
        print_status(
            f"{self._job}: aborting the open transactions of the wave (after Ctrl-C again, they"
            " stay open until their timeout or the next command)"
        )

    def abandoned(self) -> None:
        """Report that the wave is abandoned."""
        print_status(
            f"{self._job}: the wave was abandoned. To continue, run the same command without --new."
        )

    def end(self, records_in: int, records_out: int, late: Mapping[str, int]) -> None:
        """Report that every source is at its end."""
        print_status(
            f"{self._job}: the backfill is done: {counted(records_in, 'record')} in,"
            f" {records_out:,} out in {counted(self._waves, 'wave')}{_late(late)}."
            " `tidegate run` and `tidegate submit` continue from here."
        )

    def done_before(self) -> None:
        """Report that an earlier command has finished this backfill."""
        print_status(
            f"{self._job}: this backfill is already done. To begin another one at the job's present"
            " position, add --new."
        )


class BackfillJson(BackfillText):
    """The output for scripts, with one JSON object for each event on stdout."""

    def plan(self, plan: BackfillPlan) -> None:
        facts = {"offsets": plan.offsets, "hidden": plan.hidden}
        _print({"event": "plan", **asdict(plan), **facts})

    def wave(self, wave: WaveCompleted) -> None:
        _print({"event": "wave", **asdict(wave)})

    def progress(self, finished: int, tasks: int) -> None:
        _print({"event": "progress", "finished": finished, "tasks": tasks})

    def stopping(self) -> None:
        _print({"event": "stopping"})

    def stopped(self) -> None:
        _print({"event": "stopped"})

    def abandoning(self) -> None:
        """Print nothing: scripts see the event `abandoned`."""

    def abandoned(self) -> None:
        _print({"event": "abandoned"})

    def end(self, records_in: int, records_out: int, late: Mapping[str, int]) -> None:
        counts = {"records_in": records_in, "records_out": records_out, "late": dict(late)}
        _print({"event": "end", **counts})

    def done_before(self) -> None:
        _print({"event": "done"})


def _bad(wave: WaveCompleted) -> str:
    skipped = f", {wave.skipped:,} skipped" if wave.skipped else ""
    letters = f", {counted(wave.dead_letters, 'dead letter')}" if wave.dead_letters else ""
    return skipped + letters + _late(wave.late)


def _late(late: Mapping[str, int]) -> str:
    """Return how many records came too late for their windows; empty if none."""
    return f", {late_records(late)} too late for their windows" if late else ""


def plan_lines(plan: BackfillPlan) -> list[str]:
    """Return the plan as lines of text."""
    begins = (
        f"continues from checkpoint {plan.continues}" if plan.continues else "starts without state"
    )
    read = f"{counted(plan.offsets, 'offset')} to read"
    if plan.record_bytes is not None:
        read += f", about {data_size(plan.offsets * plan.record_bytes)}"
    lines = [f"{plan.job}: the backfill {begins}; {read}"]
    for (source, topic), group in groupby(plan.partitions, key=lambda one: (one.source, one.topic)):
        lines.append(f"  source {source}, topic {topic}:")
        lines += [
            f"    partition {one.partition}: offsets {one.begin:,} to {one.end:,} ({one.offsets:,})"
            for one in group
        ]
    if plan.first_ms is not None and plan.last_ms is not None:
        lines.append(f"  from {utc_text(plan.first_ms)} to about {utc_text(plan.last_ms)}")
    timeout = duration(plan.transaction_timeout_ms / 1000)
    span = f" and {duration(plan.wave_span_ms / 1000)}" if plan.wave_span_ms else ""
    lines += [
        f"  waves of at most {counted(plan.wave_records, 'offset')}{span}: {plan.waves} or more",
        f"  parallelism {plan.parallelism} on {plan.master}",
        f"  a wave's transactions are open for {timeout} at most (transaction.max.timeout.ms)",
        "  read_committed readers of the sinks' topics wait for the end of each wave",
    ]
    if plan.hidden:
        lines.append(
            f"  {counted(plan.hidden, 'offset')} behind open transactions and not read"
            " (`tidegate txn why-stuck` names the transactions)"
        )
    if plan.at_least_once:
        lines.append(
            f"  sinks that write records again if a wave is run again:"
            f" {', '.join(plan.at_least_once)}"
        )
    return lines


def duration(seconds: float) -> str:
    """Return a duration as text, rounded, in seconds, minutes or hours."""
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"


def data_size(size: float) -> str:
    """Return a number of bytes as text, in the largest unit that gives at least 1."""
    unit = 0
    while size >= UNIT and unit + 1 < len(SIZES):
        size, unit = size / UNIT, unit + 1
    return f"{size:,.0f} {SIZES[unit]}" if unit == 0 else f"{size:,.1f} {SIZES[unit]}"


def _print(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()
