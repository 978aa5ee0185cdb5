"""The state of the journal of a simulated job, for the protocol checker (`invariants.py`).

`invariants.py` builds the state from the entries. It shares no code with
`commit/journal/state.py`, which it checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.commit.journal.entries import AnyEntry, Claim, Lost, Publication, Settled
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.subtask_snapshot import PreparedTransaction


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """The publication that a job restores from, or none yet."""

    publication: Publication | None = None
    named: frozenset[PreparedTransaction] = frozenset()
    """Transactions of the publication. Until the publication is settled, no process may fence them
    or use their ids again.
    """
    offsets: Mapping[tuple[str, str, int], int] = field(default_factory=dict)

    @property
    def checkpoint(self) -> CheckpointId | None:
        """The checkpoint of the publication; None without one."""
        return None if self.publication is None else self.publication.checkpoint


@dataclass(slots=True)
class JournalView:
    """The state that results from all journal entries."""

    entries: dict[int, AnyEntry] = field(default_factory=dict)
    attempt: int = 0
    submission: str = ""
    """Submission id of the newest claim."""
    claimed_ms: int = 0
    """Time of the newest claim by the clock of the brokers, in ms since 1970."""
    last: JournalPosition = JournalPosition()
    base: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """Offsets of the last publication, or of the one that the user restores by the newest claim."""
    rollback_targets: list[JournalPosition] = field(default_factory=list)
    """Older positions to which the last publication could be rolled back, oldest first."""
    checkpoints: set[CheckpointId] = field(default_factory=set)
    named: set[tuple[TransactionalId, int, int]] = field(default_factory=set)
    """Transactional id, producer id and epoch of all transactions that a publication has named."""
    first_named: dict[PreparedTransaction, int] = field(default_factory=dict)
    """Number of the publication that first named a transaction."""
    lost: Lost | None = None
    """A loss that the user has not accepted."""

    @property
    def unsettled(self) -> frozenset[TransactionalId]:
        """Transactional ids that the last publication names, while it is not settled."""
        return frozenset(each.transactional_id for each in self.last.named)

    def restored(self, claim: Claim) -> JournalPosition:
        """Return the position from which an attempt starts.

        The user chooses it with the restore option, until the submission has published.
        """
        last = self.last.publication
        if claim.restore == "latest" or (last and last.submission_id == claim.submission_id):
            return self.last
        if claim.restore == "none":
            return JournalPosition()
        return next(
            each
            for each in (self.last, *reversed(self.rollback_targets))
            if each.publication and str(each.publication.checkpoint) == claim.restore
        )

    def restorable(self, retained: int) -> list[str]:
        """Return the ids of the checkpoints that a user may restore, newest first."""
        positions = (self.last, *reversed(self.rollback_targets))
        ids = [str(each.publication.checkpoint) for each in positions if each.publication]
        return ids[:retained]


def describe_entry(entry: AnyEntry) -> str:
    """Return the text of an entry for the trace."""
    kind = entry.__struct_config__.tag  # the stored tag, so a renamed class changes no trace
    match entry:
        case Publication():
            named = ", ".join(each.transactional_id.split(".", 3)[3] for each in entry.transactions)
            final = ", final" if entry.final else ""
            return f"checkpoint {entry.checkpoint}{final}, names [{named}]"
        case Claim():
            return f"claim of attempt {entry.number}"
        case Settled() | Lost():
            return f"{kind}, of entry {entry.publication}"
        case _:
            return str(kind)
