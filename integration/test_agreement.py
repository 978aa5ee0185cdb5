"""A pipeline writes and keeps the same live with kills, bounded and as a backfill; real brokers.

The cases are every pipeline of `pipelines/` and those of `integration/agreement/shapes.py`. Each
runs bounded once, and that is what the others are compared with: outputs by key and in order, final
state, positions. `make test` has one combination of each case, chosen so that every value occurs,
and the whole matrix of one case over one topic; `-m soak` has the whole matrix of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Final, NamedTuple

import pytest

from integration.agreement.cases import CASES, case_of, discovered
from integration.agreement.inputs import BROKER, Log
from integration.agreement.outcome import Outcome, differences
from integration.agreement.runs import Prepared
from integration.conftest import BACKEND, NEVER_FENCED, start_brokers

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(300),
]

WHOLE: Final = 1 << 40
"""Offsets of a wave: all in one."""


class Combination(NamedTuple):
    """How a case is run: its topics, the backend, two parallelisms, two sizes of waves."""

    case: str
    log: Log
    backend: str
    parallelisms: tuple[int, ...]
    """Partitions are three."""
    waves: tuple[int, ...]
    """Offsets."""

    def __str__(self) -> str:
        return f"{self.case}-{self.log}-{self.backend}"


QUICK: Final = (
    Combination("click-dedup", "transactions", "rocksdb", (2, 4), (WHOLE, 800)),
    Combination("payments-enriched", "plain", "memory", (3, 2), (1_500, WHOLE)),
    Combination("plain", "transactions", "memory", (4, 2), (WHOLE, 700)),
    Combination("three-levels", "gaps", "rocksdb", (2, 4), (350, WHOLE)),
    Combination("unions", "transactions", "rocksdb", (3, 4), (1_000, WHOLE)),
    Combination("policies", "gaps", "memory", (4, 2), (WHOLE, 400)),
    Combination("regions", "plain", "memory", (2, 4), (WHOLE, 600)),
)
MATRIX: Final = "order-totals"
"""The case whose matrix is run whole."""
SOAK_ONLY: Final = "payments-enriched-versions"
"""A second input of a pipeline that runs with its first one."""
LOGS: Final[tuple[Log, ...]] = ("plain", "gaps", "transactions")
BACKENDS: Final = ("rocksdb", "memory")
PARALLELISMS: Final = (2, 4)
WAVES: Final = (350, WHOLE)

Prepare = Callable[[str, Log], Prepared]


@pytest.fixture(scope="module")
def prepare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepare]:
    """Cases whose topics are written, once each, on a broker that compacts at once."""
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
    """A pipeline that is added needs an entry in `integration/agreement/cases.py`."""
    with_case = {case.pipeline for case in CASES}
    missing = [pipeline.__name__ for pipeline in discovered() if pipeline not in with_case]
    assert not missing, f"{missing} have no case in integration/agreement/cases.py"
    assert {case.name for case in CASES} == {MATRIX, SOAK_ONLY, *(each.case for each in QUICK)}
    for log in LOGS:
        assert log in {each.log for each in QUICK}
    for backend in BACKENDS:
        assert backend in {each.backend for each in QUICK}


@pytest.mark.parametrize("combination", QUICK, ids=str)
def test_live_with_kills_bounded_and_backfill_agree(
    prepare: Prepare, combination: Combination
) -> None:
    prepared = prepare(combination.case, combination.log)
    assert_agreement(prepared, combination)


def test_the_matrix_of_one_case_agrees(prepare: Prepare) -> None:
    """Both backends, parallelisms and sizes of waves, over topics with gaps. One bounded and one
    live run are enough: the state of both backends is compared in one form.
    """
    prepared = prepare(MATRIX, "gaps")
    reference = prepared.bounded("rocksdb")
    found = compared(prepared, prepared.live("memory"), reference)
    for backend, parallelism, wave_offsets in product(BACKENDS, PARALLELISMS, WAVES):
        found += backfilled(prepared, reference, backend, parallelism, wave_offsets)
    assert not found, "\n".join(found)


@pytest.mark.soak
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_the_whole_matrix_agrees(prepare: Prepare, name: str, log: Log, backend: str) -> None:
    combination = Combination(name, log, backend, (1, *PARALLELISMS), WAVES)
    assert_agreement(prepare(name, log), combination, whole=True)


def assert_agreement(prepared: Prepared, combination: Combination, *, whole: bool = False) -> None:
    """Run, and compare each run with the bounded one. `whole`: a backfill of each parallelism with
    each size of waves, else of the first with the first and so on.
    """
    backend = combination.backend
    reference = prepared.bounded(backend)
    found = compared(prepared, prepared.live(backend), reference)
    pairs = product if whole else zip
    for parallelism, wave_offsets in pairs(combination.parallelisms, combination.waves):
        found += backfilled(prepared, reference, backend, parallelism, wave_offsets)
    assert not found, "\n".join(found)


def backfilled(
    prepared: Prepared, reference: Outcome, backend: str, parallelism: int, wave_offsets: int
) -> list[str]:
    """Where a backfill does not agree."""
    outcome, waves = prepared.backfill(
        parallelism=parallelism, wave_offsets=wave_offsets, backend=backend
    )
    assert (len(waves) == 1) == (wave_offsets == WHOLE), "not the waves that were asked for"
    return compared(prepared, outcome, reference)


def compared(prepared: Prepared, outcome: Outcome, reference: Outcome) -> list[str]:
    """Where a run does not agree with a reference that has something to compare."""
    assert all(reference.state.values()), "a state is empty"
    silent = {sink for sink, messages in reference.messages.items() if not messages}
    assert silent == prepared.case.silent, "a sink got nothing"
    return differences(prepared.case, prepared.graph(), outcome, reference)
