"""What a slot counts, for its heartbeat and for the status of the job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Counters:
    """Counts of a slot since its start; written by the mailbox thread, read by the heartbeat."""

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    batches: int = 0
    """Of records that subtasks have taken in, for the slot's own loop."""
    files_stored: int = 0
    """Of state, by I/O threads; for who waits for them."""
    restoring: str = ""
    """The storage call that a restore waits for; empty if for none."""
    restoring_to: Path | None = None
    """The file that this call writes."""
    restored_bytes: int = 0
    """Of the calls that have returned."""

    def restored(self) -> int:
        """Bytes that a restore has brought, also of a file that is not complete."""
        target = self.restoring_to
        try:
            return self.restored_bytes + (0 if target is None else target.stat().st_size)
        except OSError:  # it does not exist yet
            return self.restored_bytes
