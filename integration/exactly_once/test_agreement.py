"""A live run with kills, a bounded run and a backfill have the same output and state.

The tests use real brokers. The cases are every pipeline of `pipelines/` and the pipelines of
`integration/agreement/shapes.py`. Each case runs bounded once, and the other runs are compared with
this run: outputs by key and in order, final state, and positions. Pipelines with windows are also
compared with a batch over their input. A pipeline with event time also runs with two parallelisms,
one after the other. `make test` runs one combination of each case, chosen so that every value
occurs, and half of the matrix of one case over one kind of topic. `-m soak` runs the whole matrix
of all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final, NamedTuple

import pytest

from integration.agreement.cases import CASES, case_of, discovered
from integration.agreement.inputs import BROKER, Log
from integration.agreement.outcome import Outcome, differences, imbalance
from integration.agreement.runs import Prepared
from integration.conftest import BACKEND, NEVER_FENCED, start_brokers

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(300),
]

WHOLE: Final = 1 << 40
"""Offsets per wave, so many that one wave holds the whole input."""


class Combination(NamedTuple):
    """The settings of a case: its topics, the state backend, parallelisms and sizes of waves."""

    case: str
    log: Log
    backend: str
    parallelisms: tuple[int, ...]
    """Parallelisms of the backfills. The topics have three partitions."""
    waves: tuple[int, ...]
    """Offsets per wave of the backfills."""

    def __str__(self) -> str:
        return f"{self.case}-{self.log}-{self.backend}"


QUICK: Final = (
    Combination("click-dedup", "transactions", "rocksdb", (2, 4), (WHOLE, 800)),
    Combination("payments-enriched", "plain", "memory", (3, 2), (1_500, WHOLE)),
    Combination("paid-orders", "transactions", "rocksdb", (3, 2), (WHOLE, 600)),
    Combination("hourly-revenue", "gaps", "rocksdb", (4, 3), (WHOLE, 500)),
    Combination("hourly-revenue-late", "transactions", "memory", (2, 3), (450, WHOLE)),
    Combination("visits", "plain", "memory", (3, 4), (WHOLE, 550)),
    Combination("card-alerts", "plain", "rocksdb", (2, 3), (WHOLE, 500)),
    Combination("page-report", "transactions", "memory", (2, 4), (WHOLE, 450)),
    Combination("clean-signups", "gaps", "memory", (2, 3), (WHOLE, 500)),
    Combination("plain", "transactions", "memory", (4, 2), (WHOLE, 700)),
    Combination("three-levels", "gaps", "rocksdb", (2, 4), (350, WHOLE)),
    Combination("unions", "transactions", "rocksdb", (3, 4), (1_000, WHOLE)),
    Combination("policies", "gaps", "memory", (4, 2), (WHOLE, 400)),
    # Its bounded run has two subtasks, and one of its runs changes from one to three.
    Combination("same-records", "plain", "rocksdb", (1, 3), (250, WHOLE)),
    Combination("regions", "plain", "memory", (2, 4), (WHOLE, 600)),
)
MATRIX: Final = "order-totals"
"""The case that runs with half of its matrix."""
HALF: Final = (
    ("rocksdb", 2, 350),
    ("rocksdb", 4, WHOLE),
    ("memory", 2, WHOLE),
    ("memory", 4, 350),
)
"""Half of the matrix of one kind of topic. It has every pair of values of two settings."""
SOAK_ONLY: Final = "payments-enriched-versions"
"""A case with a second input for a pipeline. `QUICK` has the case with the first input."""
LOGS: Final[tuple[Log, ...]] = ("plain", "gaps", "transactions")
BACKENDS: Final = ("rocksdb", "memory")
PARALLELISMS: Final = (2, 4)
WAVES: Final = (350, WHOLE)

Prepare = Callable[[str, Log], Prepared]


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepare]:
    """A function that writes the topics of a case, once, on a broker that compacts at once."""
    folder = tmp_path_factory.mktemp("agreement")
    cluster = start_brokers(
        BACKEND, "4.3.0", folder / "kafka", properties={**NEVER_FENCED, **BROKER}
    )
    made: dict[tuple[str, Log], Prepared] = {}

    def prepared(name: str, log: Log) -> Prepared:
        if (name, log) not in made:
            place = folder / f"{name}-{log}"
            place.mkdir()
            made[name, log] = Prepared.make(case_of(name), log, cluster.bootstrap, place)
        return made[name, log]

    try:
        yield prepared
    finally:
        cluster.stop()


def test_every_pipeline_has_a_case_and_every_case_is_run() -> None:
    """A new pipeline needs an entry in `integration/agreement/cases.py`."""
    with_case = {case.pipeline for case in CASES}
    missing = [pipeline.__name__ for pipeline in discovered() if pipeline not in with_case]
    assert not missing, f"{missing} have no case in integration/agreement/cases.py"
    assert {case.name for case in CASES} == {MATRIX, SOAK_ONLY, *(each.case for each in QUICK)}
    for log in LOGS:
        assert log in {each.log for each in QUICK}
    for backend in BACKENDS:
        assert backend in {each.backend for each in QUICK}


@pytest.mark.once
@pytest.mark.parametrize("combination", QUICK, ids=str)
def test_live_run_with_kills_bounded_run_and_backfill_have_the_same_output(
    prepare: Prepare, combination: Combination
) -> None:
    prepared = prepare(combination.case, combination.log)
    assert_agreement(prepared, combination)


@pytest.mark.slow
def test_backfills_of_one_case_agree_over_half_of_the_matrix(prepare: Prepare) -> None:
    """The test runs both backends, parallelisms and sizes of waves, over topics with gaps. One
    bounded and one live run are enough, because the state of both backends is compared in one form.
    """
    prepared = prepare(MATRIX, "gaps")
    reference = prepared.bounded("rocksdb")
    found = compared(prepared, prepared.live("memory"), reference)
    for backend, parallelism, wave_offsets in HALF:
        found += backfilled(prepared, reference, backend, parallelism, wave_offsets)
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_runs_and_backfills_of_all_cases_agree_over_the_whole_matrix(
    prepare: Prepare, name: str, log: Log, backend: str
) -> None:
    combination = Combination(name, log, backend, (1, *PARALLELISMS), WAVES)
    assert_agreement(prepare(name, log), combination, whole=True)


def assert_agreement(prepared: Prepared, combination: Combination, *, whole: bool = False) -> None:
    """Run a combination, and compare each run with the bounded run.

    With `whole`, a backfill runs for each pair of a parallelism and a size of waves. Otherwise the
    first parallelism runs with the first size, the second with the second, and so on.
    """
    backend = combination.backend
    reference = prepared.bounded(backend)
    found = imbalance(prepared.case, reference, prepared.inputs)
    live = prepared.live(backend)
    found += compared(prepared, live, reference)
    assert all(live.messages[sink] for sink in prepared.case.silent_by_chance), "a sink got nothing"
    if prepared.case.rescales is not None:
        rescaled = prepared.rescaled(backend, prepared.case.rescales)
        found += compared(prepared, rescaled, reference)
    pairs = product if whole else zip
    for parallelism, wave_offsets in pairs(combination.parallelisms, combination.waves):
        found += backfilled(prepared, reference, backend, parallelism, wave_offsets)
    assert not found, "\n".join(found)


def backfilled(
    prepared: Prepared, reference: Outcome, backend: str, parallelism: int, wave_offsets: int
) -> list[str]:
    """Run a backfill, and return its differences from the reference."""
    outcome, waves = prepared.backfill(
        parallelism=parallelism, wave_offsets=wave_offsets, backend=backend
    )
    assert (len(waves) == 1) == (wave_offsets == WHOLE), "not the waves that were asked for"
    return compared(prepared, outcome, reference)


def compared(prepared: Prepared, outcome: Outcome, reference: Outcome) -> list[str]:
    """Return the differences of a run from a reference. Fail if the reference lacks state or
    output.
    """
    assert all(reference.state.values()), "a state is empty"
    silent = {sink for sink, messages in reference.messages.items() if not messages}
    case = prepared.case
    assert case.silent <= silent <= case.silent | case.silent_by_chance, "a sink got nothing"
    found = differences(case, prepared.graph(), outcome, reference)
    return found + imbalance(case, outcome, prepared.inputs)
