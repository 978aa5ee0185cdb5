"""The arithmetic of `make bench-spark`: rates, goals, lines, what Kafka remembers of an id."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import msgspec
import pytest

from integration.bench import claims_micro
from integration.bench.claims_micro import state_partition, state_record
from integration.bench.reports_micro import encoded_report
from integration.bench.spark_cost import (
    BACKFILL,
    BOUNDED,
    HAND,
    LOOSE,
    Compared,
    Rate,
    line_through,
    median_of,
    table_of,
    write_module,
)
from integration.bench.whole_tree import Spent, TreeMeter, run_to_end
from tidegate.protocol.waves import read_report


def compared(**cpu_and_speed: tuple[float, float]) -> Compared:
    rates = {kind.replace("_", " "): Rate(*pair) for kind, pair in cpu_and_speed.items()}
    return Compared("total", rates, rates)


def test_rate_has_cpu_per_million_records_and_records_per_second() -> None:
    rate = Rate.of(Spent(wall_s=4.0, cpu_s=6.0) - Spent(wall_s=2.0, cpu_s=1.0), 500_000)
    assert rate == Rate(cpu_per_million=10.0, records_per_s=250_000)


def test_records_per_second_is_nan_if_the_wall_time_is_too_short() -> None:
    assert math.isnan(Rate.of(Spent(wall_s=0.01, cpu_s=1.0), 1_000).records_per_s)


def test_median_rate_takes_the_median_of_each_figure_separately() -> None:
    rates = [Rate(1.0, 30.0), Rate(2.0, 10.0), Rate(3.0, 20.0)]
    assert median_of(rates) == Rate(2.0, 20.0)


def test_goals_are_met_exactly_at_their_limits() -> None:
    found = compared(
        **{
            HAND: (3.0, 100.0),
            BOUNDED: (10.0, 100.0),
            BACKFILL: (13.0, 100.0),
            LOOSE: (12.0, 110.0),
        }
    )
    assert all(said.endswith(": met.") for said in found.verdicts())


def test_each_missed_goal_is_reported_with_its_numbers() -> None:
    found = compared(
        **{HAND: (3.0, 100.0), BOUNDED: (10.0, 100.0), BACKFILL: (13.2, 99.0), LOOSE: (11.0, 110.0)}
    )
    verdicts = found.verdicts()
    assert all(said.endswith(": MISSED.") for said in verdicts)
    assert "1.32 times that of the bounded run" in verdicts[0]
    assert "0.99 times the job by hand" in verdicts[1]
    assert "+20% CPU" in verdicts[2]
    assert all(said in table_of(found, 2).note for said in verdicts)


def test_goal_is_not_decided_if_the_noise_is_larger() -> None:
    found = compared(
        **{HAND: (3.0, 100.0), BOUNDED: (10.0, 100.0), BACKFILL: (9.0, 100.0), LOOSE: (11.0, 110.0)}
    )
    assert found.verdicts()[2].endswith(": not decided, the noise is larger.")
    assert "decide nothing" in table_of(found, 1).note
    assert "decide nothing" not in table_of(found, 3).note
    assert not table_of(found, 1).whole
    assert table_of(found, 3).whole


def test_table_with_a_negative_cost_or_nan_rate_is_not_whole() -> None:
    for void in ((-1.0, 100.0), (1.0, math.nan)):
        found = compared(
            **{HAND: void, BOUNDED: (10.0, 1.0), BACKFILL: (9.0, 1.0), LOOSE: (11.0, 1.0)}
        )
        assert not table_of(found, 3).whole


def test_line_through_points_is_found_with_its_deviation() -> None:
    line = line_through([(1.0, 3.0), (2.0, 5.0), (10.0, 21.0)])
    assert (line.fixed, line.slope) == pytest.approx((1.0, 2.0))
    assert line.off == pytest.approx(0.0, abs=1e-9)
    assert line_through([(1.0, 3.0), (2.0, 5.0), (10.0, 42.0)]).off > 0.1


def test_state_record_of_a_transactional_id_is_encoded_as_kafka_writes_it() -> None:
    """Bytes of a broker: version 0 of the key; Java's `"ab".hashCode()` is 3105."""
    key, value = state_record("ab", 7, 1_000)
    assert key == b"\x00\x00\x00\x02ab"
    assert value == (
        b"\x00\x00"
        + (7).to_bytes(8, "big")
        + b"\x00\x00"
        + claims_micro.TIMEOUT_MS.to_bytes(4, "big")
        + b"\x04"
        + b"\x00\x00\x00\x00"
        + (1_000).to_bytes(8, "big") * 2
    )
    assert state_partition("ab", 50) == 3105 % 50
    assert state_partition("polygenelubricants", 50) == 0  # whose hash is the smallest integer


def test_wave_report_lists_every_sender() -> None:
    report = read_report(encoded_report(3, 1_000))
    assert len({run for _, run in report.consumed}) == 1_000
    assert len(msgspec.msgpack.encode(report.consumed)) > 16_000


def test_each_written_job_module_has_its_own_name(tmp_path: Path) -> None:
    references = {write_module(tmp_path, "Totals") for _ in range(3)}
    assert len(references) == 3
    for reference in references:
        module, name = reference.split(":")
        assert name == "Job"
        assert "import Totals" in (tmp_path / f"{module}.py").read_text()


CHILD = """
    import time
    while time.process_time() < 0.6:
        pass
"""
PARENT = """
    import signal, subprocess, sys, time
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as the parent of Spark's Python workers
    child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
    sys.stdin.readline()
    time.sleep(0.3)
"""


def test_cpu_of_an_ended_child_counts_although_its_parent_did_not_wait(tmp_path: Path) -> None:
    parent, child = map(textwrap.dedent, (PARENT, CHILD))
    process = subprocess.Popen([sys.executable, "-c", parent, child], stdin=subprocess.PIPE)
    with TreeMeter(process.pid) as meter:
        deadline_s = time.monotonic() + 60
        while meter.cpu_s() < 0.5 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        process.communicate(b"\n")
        assert 0.5 <= meter.cpu_s() < 5.0


def test_command_is_measured_to_its_end_and_receives_its_input(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(input())"]
    spent, said = run_to_end(command, tmp_path, dict(os.environ), b"words\n")
    assert said == "words\n"
    assert spent.wall_s > 0


def test_failed_command_raises_an_error_with_its_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('broken')"]
    with pytest.raises(RuntimeError, match="status 1:\nbroken"):
        run_to_end(command, tmp_path, dict(os.environ))
