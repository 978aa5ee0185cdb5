"""Drawn pipelines with event time have the results of a batch over their input, in every run.

A pipeline runs bounded, live with kills, at two parallelisms one after the other, and as a
backfill. In one more run, a backfill whose driver was killed hands its open windows over to a live
run, and that one to a second backfill. No run drains at first: the state that they leave is
compared, where it cannot depend on the interleaving. Then each job continues at another parallelism
and drains. The judge compares all of its output with the input: `integration/agreement/drawn` has
the rules, and says which features are not drawn. `make test` runs one pipeline within the bound and
one beyond it. `-m soak` runs many, over all kinds of topics and in all these ways. A failure prints
the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from integration.agreement.drawn.cases import assert_right, case_of
from integration.agreement.drawn.draws import draw
from integration.agreement.drawn.hand_overs import hand_over_of
from integration.agreement.inputs import BROKER, Log
from integration.agreement.runs import Prepared
from integration.conftest import BACKEND, NEVER_FENCED, start_brokers

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(600)]

BOUNDED, LIVE, RESCALED, HANDED_OVER = "bounded", "live", "rescaled", "handed over"
WHOLE: Final = 1 << 40
"""Offsets per wave, so many that one wave holds the whole input."""
RECORDS: Final = 600
"""Approximate number of records of each source."""


class Combination(NamedTuple):
    """A drawn pipeline with its topics, the state backend, and the backfills."""

    seed: int
    beyond: bool
    log: Log
    backend: str
    runs: tuple[str, ...]
    """The runs that are not only a backfill. The first one is the reference of the state."""
    backfills: tuple[tuple[int, int], ...]
    """Pairs of a parallelism and the offsets of a wave."""

    def __str__(self) -> str:
        where = "beyond" if self.beyond else "within"
        return f"{self.seed}-{where}-{self.log}-{self.backend}"


QUICK: Final = (
    Combination(4, False, "plain", "rocksdb", (BOUNDED, LIVE, HANDED_OVER), ()),
    Combination(7, True, "transactions", "memory", (RESCALED, HANDED_OVER), ((4, WHOLE),)),
)
LOGS: Final[tuple[Log, ...]] = ("plain", "transactions", "gaps")
BOTH: Final = ((2, 350), (4, WHOLE))
SOAK: Final = tuple(
    Combination(
        seed,
        bool(seed % 2),
        LOGS[seed % 3],
        ("rocksdb", "memory")[seed // 2 % 2],
        (BOUNDED, LIVE, RESCALED, HANDED_OVER),
        BOTH,
    )
    for seed in range(100, 124)
)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that compacts at once."""
    folder = tmp_path_factory.mktemp("drawn")
    cluster = start_brokers(
        BACKEND, "4.3.0", folder / "kafka", properties={**NEVER_FENCED, **BROKER}
    )
    try:
        yield cluster.bootstrap
    finally:
        cluster.stop()


@pytest.mark.parametrize("combination", QUICK, ids=str)
def test_drawn_pipeline_has_the_results_of_a_batch_in_every_run(
    bootstrap: str, tmp_path: Path, combination: Combination
) -> None:
    assert_agreement(bootstrap, tmp_path, combination)


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("combination", SOAK, ids=str)
def test_many_drawn_pipelines_have_the_results_of_a_batch_in_every_run(
    bootstrap: str, tmp_path: Path, combination: Combination
) -> None:
    assert_agreement(bootstrap, tmp_path, combination)


def assert_agreement(bootstrap: str, folder: Path, combination: Combination) -> None:
    """Run a drawn pipeline in all ways, and judge each run."""
    drawn = draw(combination.seed, beyond=combination.beyond)
    case = case_of(drawn, folder, size=RECORDS)
    prepared = Prepared.make(case, combination.log, bootstrap, folder)
    backend = combination.backend
    made = {
        BOUNDED: lambda: prepared.bounded(backend),
        LIVE: lambda: prepared.live(backend),
        RESCALED: lambda: prepared.rescaled(backend, (2, 3)),
        HANDED_OVER: lambda: prepared.handed_over(hand_over_of(combination.seed), backend),
    }
    outcomes = [made[run]() for run in combination.runs]
    for parallelism, wave_offsets in combination.backfills:
        outcome, waves = prepared.backfill(
            parallelism=parallelism, wave_offsets=wave_offsets, backend=backend
        )
        assert (len(waves) == 1) == (wave_offsets == WHOLE), "not the waves that were asked for"
        outcomes.append(outcome)
    assert_right(drawn, prepared.inputs, outcomes)
