"""Two versions of the code: each run has its own figure, and the versions start first in turns."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from integration.bench import two_trees
from integration.bench.cost import Rig
from integration.bench.workloads import WORKLOADS, Workload


class Started:
    """A rig that has no broker, and the runs in the order of their starts."""

    count = 1_000

    def __init__(self) -> None:
        self.trees: list[Path] = []
        self.checked: list[str] = []

    def fresh(self, what: str) -> tuple[str, Path]:
        return what, Path()

    def check(self, workload: Workload, sink: str, count: int) -> None:
        self.checked.append(sink)

    def run(self, rig: Rig, workload: Workload, tree: Path, sink: str, folder: Path) -> float:
        self.trees.append(tree)
        return float(len(self.trees))


@pytest.mark.parametrize("other", [Path("/before"), Path("/now")])
def test_each_version_has_the_figure_of_its_own_run_also_if_both_are_the_same(
    monkeypatch: pytest.MonkeyPatch, other: Path
) -> None:
    rig, trees = Started(), (other, Path("/now"))
    monkeypatch.setattr(two_trees, "_run", rig.run)
    monkeypatch.setattr(two_trees, "ThreadPoolExecutor", OneAfterTheOther)
    found = list(two_trees.compare(cast("Rig", rig), WORKLOADS["total"], trees, rounds=2))
    assert found == [(1.0, 2.0), (4.0, 3.0)]
    assert rig.trees == [*trees, *trees[::-1]]
    assert rig.checked == ["out"] * 4


def test_run_that_fails_ends_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> float:
        raise RuntimeError("the job failed")

    monkeypatch.setattr(two_trees, "_run", fail)
    tree = Path("/now")
    with pytest.raises(RuntimeError, match="the job failed"):
        list(two_trees.compare(cast("Rig", Started()), WORKLOADS["total"], (tree, tree), 1))


class OneAfterTheOther(ThreadPoolExecutor):
    """A pool with one thread, so that the order of the runs is that of their starts."""

    def __init__(self, _workers: int) -> None:
        super().__init__(1)
