"""The result of `tidegate diff`, as text for people and as JSON for scripts.

The module is separate from the work, so that tests compare its text without a checkpoint.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.cli.inspect.code_changes import Change
from tidegate.message_text import utc_text


class Loss(msgspec.Struct, frozen=True):
    """Output that the job has lost, as its journal states it."""

    statement: str
    accepted: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The code of a job, compared with a checkpoint of it."""

    job: str
    reference: str
    storage: str
    checkpoint: str = ""
    """The id of the checkpoint; empty if a run would start without one."""
    without_state: bool = False
    """Whether the user wants a run without state, whatever checkpoints there are."""
    taken_ms: int = 0
    same: bool = False
    """Whether the graph of the code is the one that wrote the checkpoint."""
    changes: tuple[Change, ...] = ()
    refusals: tuple[str, ...] = ()
    lost: Loss | None = None

    @property
    def loss_refused(self) -> bool:
        """Whether a run is refused because a loss of output is not accepted yet."""
        return self.lost is not None and not self.lost.accepted

    @property
    def accepted(self) -> bool:
        """Whether a run would continue from the checkpoint."""
        return not self.refusals and not self.loss_refused


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON object."""
    return {**msgspec.to_builtins(comparison), "accepted": comparison.accepted}


def comparison_text(comparison: Comparison) -> str:
    """Return the comparison as lines of text, with the verdict at the end."""
    if not comparison.checkpoint:
        asked = f"{comparison.job}: with --restore none a run starts without state."
        nothing = (
            f"{comparison.job}: the checkpoint storage {comparison.storage!r} has no checkpoint to "
            "restore, so there is nothing to compare. A run starts without state."
        )
        return "\n".join([asked if comparison.without_state else nothing, *_loss_lines(comparison)])
    title = (
        f"{comparison.job}: checkpoint {comparison.checkpoint} of {utc_text(comparison.taken_ms)}, "
        f"compared with {comparison.reference}"
    )
    lines = [title, *map(_change_line, comparison.changes)]
    if not comparison.changes:
        lines.append("  no difference")
    if comparison.refusals:
        lines.append("Refused: a run would not start, for these reasons:")
        lines += [f"  {number}. {each}" for number, each in enumerate(comparison.refusals, 1)]
        lines.append("To start without this state, run the job with --restore none.")
    lines += _loss_lines(comparison)
    if comparison.accepted:
        lines.append(f"Accepted: a run continues from checkpoint {comparison.checkpoint}.")
    return "\n".join(lines)


def _change_line(change: Change) -> str:
    values = {
        (True, True): f": {change.was} -> {change.now}",
        (True, False): f": {change.was}",
        (False, True): f": {change.now}",
        (False, False): "",
    }[bool(change.was), bool(change.now)]
    effect = f" ({change.effect})" if change.effect else ""
    return f"  {change.change:<8} {change.kind} {change.name}{values}{effect}"


def _loss_lines(comparison: Comparison) -> list[str]:
    if comparison.lost is None or comparison.lost.accepted:
        return []
    return [
        "The job has lost output, and a run is refused until that is accepted:",
        f"  {comparison.lost.statement}",
        "With --accept-data-loss a run continues without this output.",
    ]
