"""The words of `tidegate backfill`: its plan, its waves, its end, and the same for scripts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tidegate.backfill.driver import WaveCompleted
from tidegate.backfill.plan import BackfillPlan, PartitionRange
from tidegate.cli.backfill.output import (
    BackfillJson,
    BackfillText,
    data_size,
    duration,
    plan_lines,
)
from tidegate.ids import JobName, Uid


def part(partition: int, begin: int, end: int, hidden: int = 0) -> PartitionRange:
    return PartitionRange(
        source=Uid("orders"),
        topic="o",
        partition=partition,
        begin=begin,
        end=end,
        hidden=hidden,
    )


PLAN = BackfillPlan(
    job=JobName("shop"),
    submission="s1",
    continues="",
    partitions=(part(0, 0, 1_500), part(1, 10, 510)),
    waves=2,
    wave_records=1_000,
    wave_span_ms=None,
    parallelism=3,
    master="local[2]",
    transaction_timeout_ms=900_000,
    at_least_once=(),
    record_bytes=512.0,
    first_ms=0,
    last_ms=86_400_000,
)
WAVE = WaveCompleted(
    attempt=3,
    records_in=1_000,
    records_out=900,
    skipped=0,
    dead_letters=0,
    late={},
    seconds=2.0,
    offsets_left=1_000,
    hidden_offsets=0,
)


def test_the_plan_names_offsets_bytes_times_waves_and_the_timeout() -> None:
    assert plan_lines(PLAN) == [
        "shop: the backfill starts without state; 2,000 offsets to read, about 1,000.0 KiB",
        "  source orders, topic o:",
        "    partition 0: offsets 0 to 1,500 (1,500)",
        "    partition 1: offsets 10 to 510 (500)",
        "  from 1970-01-01 00:00:00 UTC to about 1970-01-02 00:00:00 UTC",
        "  waves of at most 1,000 offsets: 2 or more",
        "  parallelism 3 on local[2]",
        "  a wave's transactions are open for 15 min at most (transaction.max.timeout.ms)",
        "  read_committed readers of the sinks' topics wait for the end of each wave",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"continues": "4-1"}, "the backfill continues from checkpoint 4-1"),
        ({"partitions": (part(0, 5, 3, hidden=7),)}, "offsets 5 to 3 (0)"),
        ({"partitions": (part(0, 5, 3, hidden=7),)}, "7 offsets behind open transactions"),
        ({"at_least_once": ("audit", "log")}, "if a wave is run again: audit, log"),
        ({"wave_span_ms": 7_200_000}, "at most 1,000 offsets and 2.0 h: 2 or more"),
        ({"record_bytes": None, "first_ms": None}, "2,000 offsets to read"),
        ({"last_ms": 1_764_448_000_000_000}, "to about 1764448000000000 ms"),
    ],
)
def test_plan_shows_a_checkpoint_hidden_offsets_at_least_once_sinks_and_a_time_span(
    changes: dict[str, Any], said: str
) -> None:
    assert said in "\n".join(plan_lines(replace(PLAN, **changes)))


def test_line_of_a_wave_shows_its_rate_and_the_remaining_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = BackfillText("shop")
    output.plan(PLAN)
    capsys.readouterr()
    output.wave(WAVE)
    assert capsys.readouterr().err == (
        "shop: wave 1 committed: 1,000 records in, 900 out in 2.0 s (500 a second);"
        " 1,000 offsets left, about 2.0 s\n"
    )
    output.wave(replace(WAVE, offsets_left=0, skipped=3, dead_letters=1))
    assert "(500 a second), 3 skipped, 1 dead letter; 0 offsets left\n" in capsys.readouterr().err


def test_lines_of_a_wave_and_of_the_end_count_late_records_by_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = BackfillText("shop")
    output.plan(PLAN)
    output.wave(replace(WAVE, skipped=3, late={"hourly": 1_200, "daily": 1}))
    said = "1 at daily, 1,200 at hourly too late for their windows"
    assert f", 3 skipped, {said}; 1,000 offsets left" in capsys.readouterr().err
    output.end(9, 8, {"hourly": 1_200, "daily": 1})
    assert f"9 records in, 8 out in 1 wave, {said}. `tidegate run`" in capsys.readouterr().err


def test_json_output_has_one_object_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    output = BackfillJson("shop")
    output.plan(PLAN)
    output.wave(WAVE)
    output.progress(3, 8)
    output.stopping()
    output.stopped()
    output.abandoned()
    output.end(5, 4, {"hourly": 2})
    output.done_before()
    captured = capsys.readouterr()
    events = [json.loads(line) for line in captured.out.splitlines()]
    assert [each["event"] for each in events] == [
        "plan",
        "wave",
        "progress",
        "stopping",
        "stopped",
        "abandoned",
        "end",
        "done",
    ]
    assert (events[0]["offsets"], events[0]["partitions"][1]["begin"]) == (2_000, 10)
    assert (events[1]["records_in"], events[6]["records_out"]) == (1_000, 4)
    assert (events[1]["late"], events[6]["late"]) == ({}, {"hourly": 2})
    assert (events[2]["finished"], events[2]["tasks"]) == (3, 8)
    assert captured.err == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (59.0, "59.0 s"), (90, "2 min"), (5400, "1.5 h")]
)
def test_durations_are_shown_in_seconds_minutes_or_hours(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 bytes"), (2048, "2.0 KiB"), (3 << 40, "3.0 TiB"), (5 << 50, "5,120.0 TiB")],
)
def test_data_sizes_are_shown_in_the_largest_unit_that_fits(size: float, text: str) -> None:
    assert data_size(size) == text
