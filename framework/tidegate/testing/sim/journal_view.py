"""What the entries of a simulated job's journal add up to, for the watch (`invariants.py`).

It is folded there, and shares no code with `checkpoint/journal_state.py`, which is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.checkpoint.journal import AnyEntry, Claim, Lost, Publication, Settled
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.snapshots import PreparedTransaction


@dataclass(frozen=True, slots=True)
class JournalPosition:
    """What a job stands on: a publication, or nothing yet."""

    publication: Publication | None = None
    named: frozenset[PreparedTransaction] = frozenset()
    """Nobody may fence these, or use their ids again, until the publication is settled."""
    offsets: Mapping[tuple[str, str, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class JournalView:
    """What the entries that exist add up to."""

    entries: dict[int, AnyEntry] = field(default_factory=dict)
    attempt: int = 0
    submission: str = ""
    """Of the newest claim."""
    claimed_ms: int = 0
    """The brokers' time of the newest claim."""
    last: JournalPosition = JournalPosition()
    base: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    """The positions of the last publication, or of that which the newest claim restores by hand."""
    earlier: list[JournalPosition] = field(default_factory=list)
    """What the last publication could be taken back to, oldest first."""
    checkpoints: set[CheckpointId] = field(default_factory=set)
    named: set[tuple[TransactionalId, int, int]] = field(default_factory=set)
    """Id, producer id and epoch of all that any publication has named."""
    first_named: dict[PreparedTransaction, int] = field(default_factory=dict)
    """By which publication."""
    lost: Lost | None = None
    """A loss that is not accepted."""

    @property
    def unsettled(self) -> frozenset[TransactionalId]:
        """Ids that the last publication names, while it is not settled."""
        return frozenset(each.transactional_id for each in self.last.named)

    def restored(self, claim: Claim) -> JournalPosition:
        """What an attempt begins from: what its user said, until its submission has published."""
        last = self.last.publication
        if claim.restore == "latest" or (last and last.submission == claim.submission):
            return self.last
        if claim.restore == "none":
            return JournalPosition()
        return next(
            each
            for each in (self.last, *reversed(self.earlier))
            if each.publication and str(each.publication.checkpoint) == claim.restore
        )

    def known(self, retained: int) -> list[str]:
        """The ids of the publications that a user may go back to, newest first."""
        standings = (self.last, *reversed(self.earlier))
        ids = [str(each.publication.checkpoint) for each in standings if each.publication]
        return ids[:retained]


def short(entry: AnyEntry) -> str:
    """The text of an entry in a story."""
    kind = entry.__struct_config__.tag  # the stored one: a renamed class changes no story
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
