"""`tidegate check --kafka` on a real broker: one list has all problems of topics and timeouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.support.brokers import create_topic, unique
from integration.support.user_project import Folder, assert_golden
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

KEYLESS = (", record_key=lambda total: total.customer", "")


def test_fitting_topics_are_accepted_as_a_run_accepts_them(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    done = folder.command("check", "job:Totals", "--kafka", kafka.bootstrap)
    assert done.code == 0, done.out
    assert_golden("check-accepted", folder.normalised(done.out.rstrip()))
    assert not (tmp_path / ".tidegate").exists()


def test_all_problems_are_in_one_list(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    missing = ("-c", "sources.orders.topic=absent", "-c", "sinks.totals.topic=absent-too")
    timeout = ("-c", "checkpoint.tolerated_outage=20min")
    done = folder.command("check", "job:Totals", "--kafka", kafka.bootstrap, *missing, *timeout)
    assert done.code == 2
    assert_golden("check-all-problems", folder.normalised(done.out.rstrip()))


@pytest.mark.slow
def test_settings_of_topics_are_compared_with_the_pipeline(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit("job.py", *KEYLESS)
    for name, config in {
        "orders": {"retention.ms": "60000"},
        "totals": {"cleanup.policy": "compact", "min.insync.replicas": "2"},
    }.items():
        topic = unique(name)
        create_topic(kafka.bootstrap, topic, partitions=1, config=config)
        folder.edit("job.py", f'"{folder.topics[name]}"', f'"{topic}"')
        folder.topics[name] = topic
    words = ("check", "job:Totals", "--kafka", kafka.bootstrap)
    done = folder.command(*words, "-p", "2")
    assert done.code == 2
    assert_golden("check-topic-settings", folder.normalised(done.out.rstrip()))
    found = json.loads(folder.command(*words, "--json").out)
    assert [each["level"] for each in found["problems"]] == ["error", "error", "error"]


@pytest.mark.slow
def test_brokers_that_do_not_answer_are_exit_code_1_and_the_plan_is_shown(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    done = folder.command("check", "job:Totals", "--kafka", "127.0.0.1:1")
    assert done.code == 1
    assert "vertex orders" in done.out
    assert "127.0.0.1:1 refuses connections" in done.out
