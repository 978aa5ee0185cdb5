"""Which bounds are searched, which rules are broken one at a time, and what each search must find.

Sound cases must be free of violations. `SMALL` and most of the broken ones take seconds and run in
`make check`; `DEEP` takes a quarter of an hour and 2 GB (`python -m tests.commit.model --deep`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from tests.commit.model.claim_model import ClaimBounds, ClaimModel
from tests.commit.model.model import LiveModel
from tests.commit.model.search import Result, search
from tests.commit.model.state import RULES, Bounds
from tests.commit.model.wave_model import WaveModel
from tests.commit.model.wave_state import WaveBounds

WITH_ROLLBACK: Final = RULES | {"retract"}
SETTLE: Final = RULES | {"settle"}


@dataclass(frozen=True, slots=True)
class Case:
    """One search."""

    name: str
    run: Callable[[], Result]
    expected_violation: str = ""
    """The beginning of the violation's text. Empty if no violation is expected."""


def live(name: str, *, expected_violation: str = "", **bounds: Any) -> Case:
    """A search of the model of a live job."""
    return Case(name, lambda: search(LiveModel(Bounds(**bounds))), expected_violation)


def waves(name: str, *, expected_violation: str = "", **bounds: Any) -> Case:
    """A search of the model of waves."""
    return Case(
        f"waves, {name}", lambda: search(WaveModel(WaveBounds(**bounds))), expected_violation
    )


def claims(name: str, *, expected_violation: str = "", **bounds: Any) -> Case:
    """A search of the model of first claims."""
    return Case(
        f"claims, {name}", lambda: search(ClaimModel(ClaimBounds(**bounds))), expected_violation
    )


def _broken(
    make: Callable[..., Case], table: dict[str, tuple[str, dict[str, Any]]]
) -> Iterable[Case]:
    for name, (expected_violation, bounds) in table.items():
        yield make(f"broken: {name}", expected_violation=expected_violation, broken=name, **bounds)


SMALL: Final = (
    live("two attempts"),
    live("one timeout", timeouts=1),
    live("three attempts", attempts=3, records=1, checkpoints=1),
    waves("two receivers, each task run twice", widths=(1, 2), attempts=1),
    waves("two receivers, senders run twice, two drivers", widths=(1, 2), runs=(2, 1)),
    waves("two senders, two receivers, senders run twice", runs=(2, 1), attempts=1),
    waves("two records, other rows", widths=(1, 1), records=2, faults=1),
    waves("three levels", widths=(1, 2, 1), runs=(2, 2, 1), attempts=1),
    claims("two processes", processes=2),
)

LARGER: Final = (
    live("two attempts, three records", records=3),
    live("an aborted checkpoint", records=3, aborts=1, slots=5),
    live("two sinks", sinks=2),
    live("three attempts, settled", attempts=3, records=1, checkpoints=1, rules=SETTLE),
    live("two attempts, settled", records=3, rules=SETTLE),
    live("two sinks, one timeout", sinks=2, checkpoints=1, timeouts=1),
    live(
        "two sinks, one timeout, retraction",
        sinks=2,
        checkpoints=1,
        timeouts=1,
        rules=WITH_ROLLBACK,
    ),
    live("two timeouts, retraction", timeouts=2, rules=WITH_ROLLBACK),
    waves("two receivers, each task run twice, a driver that ends it", widths=(1, 2), later_runs=0),
    waves("two senders, each task run twice, two drivers", widths=(2, 1)),
    waves("three levels, each task run twice", widths=(1, 2, 1), runs=(2, 2, 2), attempts=1),
    waves("two waves, three drivers", widths=(1, 1), attempts=3, waves=2),
    claims("two processes, an expiration", processes=2, expirations=1),
    claims("two processes, four claims", processes=2, claims=4),
    claims("two processes, a late InitProducerId", processes=2, duplicates=1),
    claims("two processes, two clusters", processes=2, clusters=2),
    claims("three processes, two claims, an expiration", claims=2, expirations=1),
)

DEEP: Final = (
    live("two sinks, three records, an aborted checkpoint", sinks=2, records=3, aborts=1, slots=5),
    live("three attempts, two records", attempts=3, checkpoints=1),
    live("three records, one timeout, one abort", records=3, timeouts=1, aborts=1, slots=5),
    live("the same, retraction", records=3, timeouts=1, aborts=1, slots=5, rules=WITH_ROLLBACK),
    waves("two receivers, each task run twice, two drivers", widths=(1, 2)),
    waves("two senders, two receivers, each task run twice", attempts=1),
    waves("two senders, two receivers, other rows", runs=(2, 1), attempts=1, faults=1),
)

LOSS = "loss reported after no timeout"
EARLY_LOSS = "loss reported after a timeout before publication"
AHEAD = "output ahead"
SILENT = "silent loss"
STALL = "stall"
LOST_TAIL = "a lost tail is not noticed"

BROKEN: Final = (
    *_broken(
        live,
        {
            "no claim": (LOSS, {"attempts": 3, "records": 1, "checkpoints": 1}),
            "claim after read": (AHEAD, {}),
            "publication not through the journal": (AHEAD, {}),
            "journal trimmed": ("committed before its publication", {}),
            "EndTxn before publication": ("committed before its publication", {}),
            "fence before commit": (LOSS, {}),
            "fence named ids": (LOSS, {"attempts": 3, "records": 1, "checkpoints": 1}),
            "sweep newer attempts": (LOSS, {}),
            "no fencing": (STALL, {}),
            "fence only Ongoing": (STALL, {"rules": frozenset({"precheck"})}),
            "fence complete ids": ("", {}),
            "sources before fencing": ("", {}),
            "id without attempt": ("stuck", {}),
            "slot reuse before commit": (LOSS, {"records": 3}),
            "slot reuse once committed": (LOSS, {"records": 3}),
            "one producer, many transactions": ("half-written content", {"records": 3}),
            "unknown create is failure": (LOSS, {}),
            "delayed EndTxn(abort)": (LOSS, {}),
            "unended not carried": (SILENT, {"records": 3}),
            "aborted checkpoint drops prepared": (SILENT, {"aborts": 1}),
            "no Describe at prepare": (
                EARLY_LOSS,
                {"timeouts": 1, "rules": frozenset({"resweep"})},
            ),
            "loss ignored": (SILENT, {"timeouts": 1}),
            "late duplicate InitProducerId": (LOSS, {}),
        },
    ),
    live("without the rule: resweep", expected_violation=STALL, rules=RULES - {"resweep"}),
    live(
        "without the rule: precheck",
        expected_violation=EARLY_LOSS,
        timeouts=1,
        rules=RULES - {"precheck"},
    ),
    *_broken(
        waves,
        {
            "no marker": (SILENT, {"widths": (1, 2), "runs": (2, 1), "attempts": 1}),
            "no frame count": (
                SILENT,
                {"widths": (1, 1), "runs": (1, 1), "attempts": 1, "faults": 1},
            ),
            "rows of two runs": (
                "duplicate",
                {"widths": (1, 1), "runs": (2, 1), "attempts": 1, "faults": 1, "records": 2},
            ),
            "runs not compared": (SILENT, {"widths": (1, 2), "runs": (2, 1), "attempts": 1}),
            "runs of the last level only": (
                SILENT,
                {"widths": (1, 2, 1), "runs": (2, 1, 1), "attempts": 1},
            ),
            "one id for all runs of a task": (
                "a published transaction is lost",
                {"widths": (1, 1), "runs": (1, 2), "attempts": 1},
            ),
            "one folder for all runs of a task": (
                "the published state",
                {"widths": (1, 2), "attempts": 1},
            ),
            "publication before all reports": (
                SILENT,
                {"widths": (1, 2), "runs": (1, 1), "attempts": 1},
            ),
            "a split left out of a publication": (
                AHEAD,
                {"widths": (2, 1), "runs": (1, 1)},
            ),
        },
    ),
    *_broken(
        claims,
        {
            "waves do not initialise": (LOST_TAIL, {}),
            "an expired claim id proves": (LOST_TAIL, {"expirations": 1}),
            "the producer id is not compared": (LOST_TAIL, {"expirations": 1}),
            "the cluster is not compared": (LOST_TAIL, {"clusters": 2}),
            "a mark for each attempt": (LOST_TAIL, {"expirations": 1}),
        },
    ),
)

LARGER_BROKEN: Final = (
    *_broken(
        live,
        {
            "retract after a commit": (
                AHEAD,
                {"sinks": 2, "checkpoints": 1, "timeouts": 1, "rules": WITH_ROLLBACK},
            ),
        },
    ),
    *_broken(
        claims,
        {
            "a repeated try forgets the proof": (LOST_TAIL, {}),
            "other initialisations are not noticed": (LOST_TAIL, {}),
            "compared with a description": (LOST_TAIL, {}),
        },
    ),
)
