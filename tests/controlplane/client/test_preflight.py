"""What is refused before a job is submitted, by whom it is asked and in which words.

Method: the drivers answer from a table; folders are true ones.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.hourly_revenue import HourlyRevenue
from pipelines.order_totals import OrderTotals
from pipelines.paid_orders import PaidOrders
from tidegate import build
from tidegate.config import Config
from tidegate.config_load import load
from tidegate.controlplane.client.lock import RunLock
from tidegate.controlplane.client.preflight import (
    RunOptions,
    check_environment,
    make_submission,
    steps_that_drain,
)
from tidegate.errors import ConfigError, KafkaUnavailableError, PipelineError, RefusedError
from tidegate.ids import JobName
from tidegate.ports.kafka import EndTxnResult

JOB = JobName("order-totals")
REFERENCE = "pipelines.order_totals:OrderTotals"
BOTH = frozenset({"READ", "WRITE"})


def config(**given: str) -> Config:
    return load(command_line={key.replace("__", "."): value for key, value in given.items()})


def world(
    *,
    lacks: Collection[str] = (),
    rights: frozenset[str] | None = BOTH,
    may_end: bool = True,
    outage: str | None = None,
) -> Any:
    """Drivers of a cluster without these topics, where we have these rights."""

    def cluster_id() -> str:
        if outage is not None:
            raise KafkaUnavailableError(outage)
        return "c"

    def partitions(topic: str) -> int:
        if topic in lacks:
            message = f"Kafka has no topic {topic!r}."
            raise RefusedError(message)
        return 2

    admin = SimpleNamespace(
        cluster_id=cluster_id,
        partitions=partitions,
        rights=lambda topic: rights,
        transaction_max_timeout_ms=lambda: 900_000,
        close=lambda: None,
    )
    ended = EndTxnResult.REFUSED if may_end else EndTxnResult.NOT_AUTHORISED
    log = SimpleNamespace(end=lambda *_, commit: ended, close=lambda: None)
    return SimpleNamespace(
        blob_store=lambda folder: SimpleNamespace(probe=lambda **_: None),
        kafka_admin=lambda settings: admin,
        transaction_admin=lambda settings: log,
    )


def refusal(folder: Path, drivers: Any, settings: Config) -> str:
    with pytest.raises(RefusedError) as caught:
        check_environment(build(OrderTotals), settings, folder, drivers)
    return str(caught.value)


def test_environment_check_passes_if_topics_rights_and_folders_exist(tmp_path: Path) -> None:
    settings = config(kafka__properties__client__id="x")
    check_environment(build(OrderTotals), settings, tmp_path, world())


def test_unreachable_brokers_refuse_the_job(tmp_path: Path) -> None:
    told = refusal(tmp_path, world(outage="No Kafka broker answered."), Config())
    assert told == "No Kafka broker answered."


@pytest.mark.parametrize(("kind", "name"), [("source", "orders"), ("sink", "totals")])
def test_missing_topic_is_refused_with_its_name_and_setting(
    tmp_path: Path, kind: str, name: str
) -> None:
    settings = load(command_line={f"{kind}s.{name}.topic": "absent"})
    told = refusal(tmp_path, world(lacks={"absent"}), settings)
    assert told.startswith(f"The topic of {kind} {name!r} (")
    assert "cannot be used: Kafka has no topic 'absent'." in told
    assert f"{kind}s.{name}.topic in the configuration" in told


@pytest.mark.parametrize(("has", "lacks"), [("WRITE", "READ"), ("READ", "WRITE")])
def test_missing_topic_permission_is_refused_with_its_name(
    tmp_path: Path, has: str, lacks: str
) -> None:
    told = refusal(tmp_path, world(rights=frozenset({has})), Config())
    assert told.startswith(f"The job may not {lacks.lower()} topic ")
    assert f"its principal there are {has}. Grant it {lacks}" in told


def test_unauthorised_transactional_ids_are_refused_with_their_prefix(tmp_path: Path) -> None:
    settings = config(kafka__properties__client__id="x")
    told = refusal(tmp_path, world(may_end=False), settings)
    assert "may not use transactional ids that begin with 'tidegate.order-totals." in told
    assert "guarantee='at_least_once'" in told


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("checkpoint.interval", "1 h"),
        ("checkpoint.interval_during_backlog", "20 min"),
        ("checkpoint.timeout", "1 h"),
        ("checkpoint.min_pause", "1 h"),
        ("checkpoint.tolerable_failed_checkpoints", 50),
    ],
)
def test_backfill_is_not_refused_for_settings_of_live_checkpoints(
    tmp_path: Path, key: str, value: object
) -> None:
    settings = load(command_line={key: value})
    told = refusal(tmp_path, world(), settings)
    assert told.startswith("The job's transactions may have to stay open for")
    check_environment(build(OrderTotals), settings, tmp_path, world(), live=False)


def test_local_state_folder_of_tasks_on_other_hosts_is_not_checked_here(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = load(command_line={"state.local_dir": "file/x"})
    check_environment(
        build(OrderTotals), settings, tmp_path, world(), live=False, tasks_run_here=False
    )


@pytest.mark.parametrize("setting", ["logs.dir", "state.local_dir"])
def test_folder_that_cannot_be_written_is_refused_with_its_setting(
    tmp_path: Path, setting: str
) -> None:
    (tmp_path / "file").touch()
    told = refusal(tmp_path, world(), load(command_line={setting: "file/x"}))
    assert told.startswith(f"The folder {tmp_path}/file/x ({setting}) cannot be written: Not a dir")


@pytest.mark.parametrize(("kind", "known"), [("source", "orders"), ("sink", "totals")])
def test_settings_of_an_unknown_source_or_sink_are_refused(
    tmp_path: Path, kind: str, known: str
) -> None:
    settings = load(command_line={f"{kind}s.ordres.topic": "x"})
    words = (
        f"The configuration has {kind}s.ordres, and the pipeline has no {kind} of that name; "
        f"its {kind}s are: {known}."
    )
    with pytest.raises(ConfigError, match=words):
        make_submission(REFERENCE, tmp_path, OrderTotals, settings, RunOptions(params={}))


def test_invalid_topic_name_in_the_settings_is_refused(tmp_path: Path) -> None:
    settings = load(command_line={"sinks.totals.topic": ".."})
    with pytest.raises(PipelineError, match=r"^sinks\.totals\.topic: '\.\.' is no name of a topic"):
        make_submission(REFERENCE, tmp_path, OrderTotals, settings, RunOptions(params={}))


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "sources.orders.properties.bootstrap.servers",
            "a job has one cluster: set kafka.bootstrap_servers",
        ),
        (
            "sources.orders.properties.metadata.broker.list",
            "a job has one cluster: set kafka.bootstrap_servers",
        ),
        ("sinks.totals.properties.transactional.id", "the sink makes its own"),
        ("kafka.properties.group.id", "it is tidegate.<job>.<source>"),
    ],
)
def test_kafka_properties_that_tidegate_sets_itself_are_refused(
    tmp_path: Path, key: str, said: str
) -> None:
    settings = load(command_line={key: "x"})
    with pytest.raises(ConfigError) as caught:
        make_submission(REFERENCE, tmp_path, OrderTotals, settings, RunOptions(params={}))
    assert str(caught.value).startswith(f"{key} is set by tidegate: {said}")


def test_run_lock_refuses_a_second_run_of_the_job_in_the_same_folder(tmp_path: Path) -> None:
    with RunLock(tmp_path, "checkpoints", JOB):
        again = RunLock(tmp_path, "checkpoints", JOB)
        with pytest.raises(RefusedError, match=r"'order-totals' is running already, .* process \d"):
            again.__enter__()
    with RunLock(tmp_path, "checkpoints", JOB):
        pass  # the lock went with the first


def test_run_lock_that_a_full_disk_does_not_take_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{JOB}.lock").symlink_to("/dev/full")  # each write to it meets a full disk
    monkeypatch.setattr(
        "os.ftruncate", lambda _file, _size: None
    )  # the kernel refuses it for a device
    with pytest.raises(RefusedError, match=r"No space left on device\. .* make room on its disk"):
        RunLock(tmp_path, str(tmp_path), JOB).__enter__()


def test_run_lock_is_refused_if_the_checkpoint_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    lock = RunLock(tmp_path, "file/x", JOB)
    with pytest.raises(
        RefusedError, match=r"file/x cannot be written: Not a directory\. Set check"
    ):
        lock.__enter__()


def test_setting_job_name_overrides_the_name_of_the_pipeline(tmp_path: Path) -> None:
    """Its transactional ids are looked at under that name, too."""
    settings = config(**{"job.name": "order-totals-v2"})
    made, graph, _ = make_submission(
        REFERENCE, tmp_path, OrderTotals, settings, RunOptions(params={})
    )
    assert (made.job, graph.name) == ("order-totals-v2", "order-totals")


def test_invalid_job_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"job\.name"):
        config(**{"job.name": "Order Totals"})


@pytest.mark.parametrize(
    ("pipeline", "steps"),
    [(OrderTotals, []), (HourlyRevenue, ["hourly-revenue"]), (PaidOrders, ["await-payment"])],
)
def test_steps_drain_unasked_only_in_a_bounded_run_whose_end_nobody_has_chosen(
    pipeline: Any, steps: list[str]
) -> None:
    graph = build(pipeline)
    assert steps_that_drain(graph, RunOptions(params={}, bounded=True)) == steps
    assert steps_that_drain(graph, RunOptions(params={}, bounded=True, drain=True)) == []
    assert steps_that_drain(graph, RunOptions(params={}, bounded=True, drain=False)) == []
    assert steps_that_drain(graph, RunOptions(params={})) == []


@pytest.mark.parametrize(("drain", "drains"), [(None, True), (True, True), (False, False)])
def test_bounded_run_drains_unless_the_user_has_chosen_otherwise(
    tmp_path: Path, drain: bool | None, drains: bool
) -> None:
    options = RunOptions(params={}, bounded=True, drain=drain)
    made, _, _ = make_submission(REFERENCE, tmp_path, OrderTotals, config(), options)
    assert made.drain is drains


@pytest.mark.parametrize("drain", [True, False])
def test_choice_of_a_drain_is_refused_in_a_run_without_an_end(tmp_path: Path, drain: bool) -> None:
    options = RunOptions(params={}, drain=drain)
    with pytest.raises(ConfigError, match=r"this run has no end\. Add --bounded"):
        make_submission(REFERENCE, tmp_path, OrderTotals, config(), options)
    made, _, _ = make_submission(REFERENCE, tmp_path, OrderTotals, config(), RunOptions(params={}))
    assert made.drain is False
