"""The kinds of steps: one entry for each, with the facts that the rooms ask about a kind.

The graph, the plan of a job, a backfill and the data plane ask this table. They never compare the
name of a kind with a string, except for `source` and `sink`, which are the ends of every graph and
no operators. The code that runs a kind is in the data plane (`dataplane/operator_registry.py`).

Invariant: every node of a graph has a kind of this table. `StreamGraph.add` refuses another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tidegate.errors import InternalError


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorKind:
    """The facts of one kind of step. The defaults are those of a step without state."""

    runs_in_waves: bool
    """Whether a backfill can run the step. Each kind decides, so there is no default."""
    keyed: bool = False
    """Whether the step has keyed state. A checkpoint then stores its key type and its state
    declarations, and a restore compares them with the code.
    """
    two_inputs: bool = False
    """Whether the step has a left and a right input, which its operator tells apart."""
    fused: bool = False
    """Whether the step is one function without state. Such neighbours run in one loop, which keeps
    the source keys of the records.
    """
    own_time: bool = False
    """Whether the step gives its records event times, and has a watermark of its own. A checkpoint
    stores that watermark. The step only takes from in front whether its input is idle, and the end
    of time.
    """
    makes_records: bool = True
    """Whether the results are new records. A filter passes on the records that it gets, with their
    keys.
    """


OPERATOR_KINDS: Final[dict[str, OperatorKind]] = {
    "source": OperatorKind(runs_in_waves=True),
    "map": OperatorKind(runs_in_waves=True, fused=True),
    "flat_map": OperatorKind(runs_in_waves=True, fused=True),
    "filter": OperatorKind(runs_in_waves=True, fused=True, makes_records=False),
    "process": OperatorKind(runs_in_waves=True),
    "with_timestamps": OperatorKind(runs_in_waves=True, own_time=True, makes_records=False),
    "keyed_process": OperatorKind(runs_in_waves=True, keyed=True),
    "co_process": OperatorKind(runs_in_waves=True, keyed=True, two_inputs=True),
    "window": OperatorKind(runs_in_waves=True, keyed=True),
    "sink": OperatorKind(runs_in_waves=True),
}
"""Every kind, by the name that the fingerprint of a graph contains."""


def operator_kind(name: str) -> OperatorKind:
    """Return the facts of a kind. InternalError if no kind has this name."""
    try:
        return OPERATOR_KINDS[name]
    except KeyError:
        known = ", ".join(OPERATOR_KINDS)
        raise InternalError(f"no kind of step is named {name!r}; the kinds are {known}") from None
