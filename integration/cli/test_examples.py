"""The examples that are scripts, on a real broker: each reads a topic and writes its results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.support.brokers import Kafka, create_topic, produce, read_all
from integration.support.running import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

TIDEGATE = Path(sys.executable).with_name("tidegate")
MINUTE = 60_000

PAYMENTS: list[dict[str, object]] = [
    {"card": "a", "cents": 1, "at_ms": 0},
    {"card": "b", "cents": 70_000, "at_ms": 10},
    {"card": "a", "cents": 90_000, "at_ms": 30_000},
]
VIEWS: list[dict[str, object]] = [
    {"page": "/", "load_ms": n, "at_ms": n * 1_000} for n in range(120)
]
SIGNUPS: list[dict[str, object]] = [
    {"email": "ann@example.org", "country": "de", "at": "2026-01-31T12:00:00Z"},
    {"email": "no address", "country": "de", "at": "2026-01-31T12:00:00Z"},
    {"nothing": "of that"},
]


def run(folder: Path, bootstrap: str, *words: object) -> str:
    done = subprocess.run(
        [str(each) for each in words],
        cwd=folder,
        env={
            **os.environ,
            "TIDEGATE_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "TIDEGATE_CHECKPOINT__INTERVAL": "300 ms",
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def topic(bootstrap: str, name: str, records: list[dict[str, object]] | None = None) -> None:
    create_topic(bootstrap, name, partitions=1)
    produce(bootstrap, name, [(b"", json.dumps(each).encode()) for each in records or ()])


def values(bootstrap: str, name: str) -> list[dict[str, object]]:
    return [json.loads(each.value() or b"") for each in read_all(bootstrap, name)]


def test_event_driven_application_alerts_on_the_second_payment(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic(kafka.bootstrap, "card-payments", PAYMENTS)
    topic(kafka.bootstrap, "card-alerts")
    run(tmp_path, kafka.bootstrap, TIDEGATE, "run", ROOT / "pipelines/card_alerts.py", "--bounded")
    assert values(kafka.bootstrap, "card-alerts") == [
        {"card": "a", "tested_with": 1, "cents": 90_000, "at_ms": 30_000}
    ]


@pytest.mark.slow
def test_analytics_script_writes_the_minutes_that_are_over_and_prints_its_counts(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic(kafka.bootstrap, "page-views", VIEWS)
    topic(kafka.bootstrap, "page-report")
    printed = run(tmp_path, kafka.bootstrap, sys.executable, ROOT / "pipelines/page_report.py")
    assert printed == "120 views, 1 rows, finished\n"  # the second minute is not over
    assert values(kafka.bootstrap, "page-report") == [
        {"page": "/", "start_ms": 0, "views": 60, "mean_load_ms": 29.5, "max_load_ms": 59}
    ]


@pytest.mark.slow
def test_data_pipeline_keeps_each_signup_as_a_row_or_with_the_reason(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic(kafka.bootstrap, "signups-raw", SIGNUPS)
    topic(kafka.bootstrap, "signups")
    topic(kafka.bootstrap, "signups-bad")
    run(
        tmp_path, kafka.bootstrap, TIDEGATE, "run", ROOT / "pipelines/clean_signups.py", "--bounded"
    )
    (row,) = values(kafka.bootstrap, "signups")
    assert (row["domain"], row["at"]) == ("example.org", "2026-01-31T12:00:00Z")
    bad = values(kafka.bootstrap, "signups-bad")
    assert sorted(bad, key=len) == sorted(SIGNUPS[1:], key=len)
