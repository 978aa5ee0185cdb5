"""What the entries of a simulated job's journal add up to, for the watch (`invariants.py`).

It is folded there, and shares no code with `checkpoint/journal_state.py`, which is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.checkpoint.journal import AnyEntry, Lost, Publication
from tidegate.ids import CheckpointId, TransactionalId
from tidegate.protocol.snapshots import PreparedTransaction


@dataclass(frozen=True, slots=True)
class Standing:
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
    claimed_ms: int = 0
    """The brokers' time of the newest claim."""
    last: Standing = Standing()
    earlier: list[Standing] = field(default_factory=list)
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
