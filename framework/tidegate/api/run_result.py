"""The result of `Pipeline.run`: how a run on this machine ended, and its counts.

A run that failed has no result. It raises the error of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Ended = Literal["finished", "stopped", "stopped without a checkpoint", "canceled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run and its counts. The counts are those of this run, not of earlier runs.

    After a restart, a count continues from that of the last attempt, so it includes work that was
    done again. The output in Kafka is exact in any case.
    """

    job: str
    """The name of the job."""
    ended: Ended
    """`finished`: a bounded run has read its whole input. `stopped`: Ctrl-C or `tidegate stop`
    ended the run with a final checkpoint, from which the next run continues. `stopped without a
    checkpoint`: the final checkpoint failed, and the next run repeats the work since the last one.
    `canceled`: `tidegate cancel` ended the run."""
    records_in: int
    records_out: int
    checkpoints: int
    """The number of completed checkpoints."""
    restarts: int
    duration_s: float
    """The time from the call of `run` to its return, in seconds."""
    last_checkpoint: str | None = None
    """The id of the last completed checkpoint, for `restore=`."""
    skipped: int = 0
    """The number of bad records that `on_error` or `on_bad_record` has skipped."""
    dead_letters: int = 0
    late: dict[str, int] = field(default_factory=dict)
    """The number of records that came too late for their windows, by the uid of the step."""
    hidden_offsets: int = 0
    """The number of offsets that a bounded run did not read, because open transactions hid them."""
    notes: tuple[str, ...] = ()
    """Facts about the run that you should know, in sentences."""

    @property
    def finished(self) -> bool:
        """Whether a bounded run has read its whole input."""
        return self.ended == "finished"
