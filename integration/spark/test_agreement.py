"""Two pipelines of `integration/agreement` on a real Spark: they agree with a bounded live run.

One pipeline has three keyed levels, so it has three exchanges in one Spark job. The other sends
dead letters and side outputs from several levels. The other pipelines run in process
(`integration/exactly_once/test_agreement.py`): their tasks are the same, and only the transport of
their rows differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.agreement.cases import case_of
from integration.agreement.inputs import Log
from integration.agreement.outcome import differences
from integration.agreement.runs import Prepared
from tidegate.backfill.spark.executor import SparkExecutor
from tidegate.backfill.spark.session import BackfillSession
from tidegate.bootstrap import WAVE_TASK
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.timeout(300)

COMBINATIONS = ((3, 900), (4, 1 << 40))
"""Pairs of a parallelism and the offsets of a wave. There are three partitions and two cores."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    cluster = EmbeddedKafka.start("4.3.0", directory=tmp_path_factory.mktemp("kafka"), owned=True)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize(("name", "log"), [("three-levels", "transactions"), ("policies", "plain")])
def test_backfill_on_spark_has_the_same_output_and_state_as_a_bounded_run(
    broker: EmbeddedKafka, session: BackfillSession, tmp_path: Path, name: str, log: Log
) -> None:
    prepared = Prepared.make(case_of(name), log, broker.bootstrap, tmp_path)
    reference, graph, found = prepared.bounded(), prepared.graph(), list[str]()
    assert all(reference.messages.values())
    assert all(reference.state.values())
    for parallelism, wave_offsets in COMBINATIONS:
        outcome, waves = prepared.backfill(
            parallelism=parallelism,
            wave_offsets=wave_offsets,
            executor=SparkExecutor(session, WAVE_TASK),
        )
        assert waves
        found += differences(prepared.case, graph, outcome, reference)
    assert not found, "\n".join(found)
