"""`tidegate check` without a broker: the plan, and the problems that need none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.repository.prose import ROOT
from tidegate.cli.inspect.broker_checks import (
    is_keyless,
    sink_topic_problems,
    source_topic_problems,
)
from tidegate.cli.main import app
from tidegate.config import Config
from tidegate.drivers.kafka.topic_settings import TopicSettings
from tidegate.graph.stream_graph import Edge, StreamGraph

GOLDEN = ROOT / "tests" / "golden" / "messages" / "check-plan.txt"
BROKEN = "from tidegate import Pipeline\nclass Totals(Pipeline, name='totals'):\n    def define(\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(**changes: object) -> TopicSettings:
    known: dict[str, object] = {
        "partitions": 4,
        "replicas": 3,
        "cleanup_policy": frozenset({"delete"}),
        "retention_ms": 604_800_000,
        "min_insync_replicas": 2,
        "unclean_leader_election": False,
    }
    return TopicSettings(**(known | changes))  # type: ignore[arg-type]  # as in `known`


def test_plan_shows_vertices_steps_states_and_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    reference = "pipelines.paid_orders:PaidOrders"
    done = CliRunner().invoke(app, ["check", reference, "-p", "2"])
    assert done.exit_code == 0
    assert done.stdout == GOLDEN.read_text()
    found = json.loads(CliRunner().invoke(app, ["check", reference, "--json"]).stdout)
    assert found["topics"] == ["shop-payments", "shop-orders", "order-outcomes"]
    assert found["accepted"]
    assert [vertex["id"] for vertex in found["plan"]["vertices"]] == [
        "payments",
        "orders",
        "await-payment",
    ]


def test_problems_of_code_and_of_configuration_are_in_one_list(folder: Path) -> None:
    (folder / "broken_code.py").write_text(BROKEN)
    (folder / "tidegate.toml").write_text("[checkpoint]\nintervl = '1 s'\n")
    done = CliRunner().invoke(app, ["check", "broken_code:Totals", "--json"])
    assert done.exit_code == 2
    found = json.loads(done.stdout)
    assert not found["accepted"]
    assert found["plan"] is None
    assert [each["about"] for each in found["problems"]] == [
        "pipeline broken_code:Totals",
        "configuration",
    ]
    code, configuration = (each["text"] for each in found["problems"])
    assert "broken_code.py" in code
    assert "did you mean checkpoint.interval?" in configuration


def test_pipeline_is_built_even_if_the_configuration_is_wrong(folder: Path) -> None:
    complete = BROKEN.replace("    def define(\n", "    def define(self) -> None: ...\n")
    (folder / "without_sink.py").write_text(complete)
    done = CliRunner().invoke(app, ["check", "without_sink:Totals", "-c", "a.b=1", "--json"])
    found = json.loads(done.stdout)
    assert [each["about"] for each in found["problems"]] == ["configuration", "pipeline Totals"]
    assert "writes to no sink" in found["problems"][1]["text"]


def test_command_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    done = CliRunner().invoke(app, ["check", "pipelines.order_totals:OrderTotals"])
    assert done.exit_code == 0, done.output
    assert not list(folder.iterdir())


def test_fitting_topics_have_no_problem() -> None:
    assert not list(source_topic_problems("source a", "a", settings(), Config()))
    assert not list(sink_topic_problems("sink a", "a", settings(), keyless=True))


@pytest.mark.parametrize(
    ("changes", "parallelism", "level", "said"),
    [
        ({"partitions": 2}, 3, "warning", "leaves 1 subtask without records"),
        ({"cleanup_policy": frozenset({"compact"})}, 1, "warning", "is compacted"),
        ({"retention_ms": 659_999}, 1, "error", "keeps records for 659.999 s"),
    ],
)
def test_source_topic_that_does_not_fit_is_named_with_its_setting(
    changes: dict[str, object], parallelism: int, level: str, said: str
) -> None:
    config = Config()
    job = replace(config.job, parallelism=parallelism)
    config = replace(config, job=job)
    (found,) = source_topic_problems("source a", "a", settings(**changes), config)
    assert (found.level, found.about) == (level, "source a")
    assert said in found.text


def test_short_retention_of_a_compacted_topic_deletes_nothing() -> None:
    compacted = settings(cleanup_policy=frozenset({"compact"}), retention_ms=1)
    (found,) = source_topic_problems("source a", "a", compacted, Config())
    assert "is compacted" in found.text


@pytest.mark.parametrize(
    ("changes", "level", "said"),
    [
        ({"cleanup_policy": frozenset({"compact"})}, "error", "has no record_key="),
        ({"replicas": 1}, "error", "min.insync.replicas=2, so Kafka refuses all records"),
        ({"unclean_leader_election": True}, "warning", "unclean leader elections"),
    ],
)
def test_sink_topic_that_does_not_fit_is_named_with_its_setting(
    changes: dict[str, object], level: str, said: str
) -> None:
    (found,) = sink_topic_problems("sink a", "a", settings(**changes), keyless=True)
    assert found.level == level
    assert said in found.text


@pytest.mark.parametrize(
    ("kind", "record_key", "keyless"),
    [("map", None, False), ("keyed_process", None, True), ("keyed_process", str, False)],
)
def test_sink_is_keyless_if_a_step_in_front_of_it_drops_the_key(
    kind: str, record_key: type[str] | None, *, keyless: bool
) -> None:
    from tidegate import KafkaSink, Utf8

    sink = (
        KafkaSink("out", value=Utf8())
        if record_key is None
        else KafkaSink("out", value=Utf8(), record_key=record_key)
    )
    graph = StreamGraph("totals")
    graph.add("source", (), location="here", uid="in")
    graph.add(kind, (Edge(node="in"),), location="here", uid="step")
    node = graph.add("sink", (Edge(node="step"),), location="here", uid="out", declaration=sink)
    assert is_keyless(graph, node) is keyless
