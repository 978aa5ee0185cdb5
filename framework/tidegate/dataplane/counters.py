"""Counters of a slot, for its heartbeat and for the status of the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Counters:
    """Counts of a slot since its start. The mailbox thread writes them; the heartbeat reads them.

    I/O threads write `files_stored`.
    """

    records_in: int = 0
    records_out: int = 0
    skipped: int = 0
    dead_letters: int = 0
    backward_watermarks: int = 0
    """Number of watermarks that were behind the one before, and were ignored."""
    late: dict[str, int] = field(default_factory=dict)
    """Number of records that came too late for their windows, by the uid of the step."""
    batches: int = 0
    """Number of record batches that the subtasks have taken in. The slot's own loop reads it."""
    files_stored: int = 0
    """Number of state files that I/O threads have stored. A level task reads it as a sign of
    progress.
    """
    restoring: str = ""
    """Name of the storage call for which a restore waits, usually a path. Empty if it has none."""
    restoring_to: Path | None = None
    """The local file that this call writes. None if the call writes no file."""
    restored_bytes: int = 0
    """Number of bytes that finished calls have brought."""

    def progress(self) -> int:
        """Return what `SlotMetrics.progress` has for these counts."""
        return self.records_in + self.records_out + self.skipped + self.dead_letters

    def restored(self) -> int:
        """Return the number of bytes that a restore has brought, including those of incomplete
        files.
        """
        target = self.restoring_to
        try:
            return self.restored_bytes + (0 if target is None else target.stat().st_size)
        except OSError:  # the file does not exist yet
            return self.restored_bytes
