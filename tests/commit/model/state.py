"""The state of the model of a live job: journal, brokers, JobMasters, their tasks, and the output.

A state is one tuple of tuples. A JobMaster or task that takes no step any more is dead; one that
takes a step late is a zombie. So every order of steps covers crash, freeze and waking up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.commit.model.broker import Broker, Records, Tid, Txn

# What a JobMaster does next.
NOT_STARTED: Final = "-"
CLAIM: Final = "claim"
LATE_CLAIM: Final = "late claim"
DECIDE: Final = "decide"
LIST: Final = "list"
FENCE: Final = "fence"
DEPLOY: Final = "deploy"
RUN: Final = "run"
WAIT: Final = "wait"
DEAD: Final = "dead"
LOST: Final = "lost"

# What a sink does next. `BARRIER`: it must prepare before it writes on.
INIT: Final = "init"
WRITE: Final = "write"
BARRIER: Final = "barrier"
FAILED: Final = "failed"

# Kinds of journal entries.
CLAIMED: Final = "C"
PUBLISHED: Final = "P"
SETTLED: Final = "S"
ROLLED_BACK: Final = "R"

RULES: Final = frozenset({"resweep", "precheck"})
"""Rules that are in force unless a run leaves them out: dead attempts are fenced again and again,
and prepared transactions are described before a publication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits of the model, and the rule that is broken."""

    attempts: int = 2
    records: int = 2
    sinks: int = 1
    slots: int = 4
    """Transactional ids of a sink's subtask."""
    checkpoints: int = 2
    """Checkpoints of one attempt."""
    timeouts: int = 0
    aborts: int = 0
    """Checkpoints that are aborted."""
    broken: str = ""
    """The rule that is broken, by its name in `cases.py`."""
    rules: frozenset[str] = RULES


class Entry(NamedTuple):
    """A journal entry."""

    kind: str
    by: int
    offset: int = 0
    pending_commits: tuple[Txn, ...] = ()


class End(NamedTuple):
    """An EndTxn that was sent; `commit` is None for a late duplicate of an InitProducerId."""

    tid: Tid
    epoch: int
    commit: bool | None


class Create(NamedTuple):
    """A journal entry on its way to the storage."""

    number: int
    entry: Entry


class Master(NamedTuple):
    """A JobMaster, which is an attempt."""

    does: str = NOT_STARTED
    known: int = 0
    """The index of its last own entry."""
    offset: int = 0
    """The offset of the publication that it has restored or written last."""
    txns: tuple[Txn, ...] = ()
    """Transactions that are still to be decided."""
    ids: tuple[Tid, ...] = ()
    """Ids that are still to be fenced."""
    sent: Create | None = None
    """The publication whose outcome it awaits."""
    named: tuple[Txn, ...] = ()
    """Transactions that this publication names."""
    unended: tuple[Txn, ...] = ()
    """Those that are not known to be ended."""


class Sink(NamedTuple):
    """A sink of an attempt's tasks."""

    slot: int = 0
    epoch: int = 0
    does: str = INIT


class Tasks(NamedTuple):
    """The tasks of an attempt."""

    position: int
    """The next record."""
    barrier: int | None
    """Offset of the barrier in flight."""
    done: int
    """Checkpoints."""
    sinks: tuple[Sink, ...]
    prepared: tuple[Txn, ...]


class State(NamedTuple):
    """A state of the whole model."""

    journal: tuple[Entry, ...]
    creates: tuple[Create, ...]
    broker: Broker
    ends: frozenset[End]
    masters: tuple[Master, ...]
    tasks: tuple[Tasks | None, ...]
    output: Records
    """The number of times each record is visible."""
    timeouts: tuple[str, ...]
    """`early` or `late`: before or after the publication was sent."""
    started: int
    timeouts_left: int
    aborts_left: int

    def with_master(self, number: int, master: Master) -> State:
        """With another JobMaster of this number."""
        masters = (*self.masters[:number], master, *self.masters[number + 1 :])
        return self._replace(masters=masters)

    def with_tasks(self, number: int, tasks: Tasks) -> State:
        """With other tasks of this attempt."""
        return self._replace(tasks=(*self.tasks[:number], tasks, *self.tasks[number + 1 :]))

    @property
    def latest(self) -> int | None:
        """The JobMaster that claimed last."""
        before = (NOT_STARTED, CLAIM, LATE_CLAIM)
        claimed = [number for number, each in enumerate(self.masters) if each.does not in before]
        return claimed[-1] if claimed else None


class JournalPosition(NamedTuple):
    """The state that the journal's entries result in."""

    offset: int = 0
    pending_commits: tuple[Txn, ...] = ()
    introduced: tuple[Txn, ...] = ()
    """Transactions that the publication was the first to name."""
    irrevocable: bool = False
    """Whether one of these is known to be committed."""


def find_position(journal: tuple[Entry, ...]) -> JournalPosition:
    """The last publication that counts.

    A settled entry empties the list of named transactions. If a publication is rolled back, the one
    before it counts again. Of its transactions, only those are open that the rolled-back
    publication still carried, because the ids of the others may be in use again.
    """
    stack = [JournalPosition()]
    for entry in journal:
        last = stack[-1]
        if entry.kind == PUBLISHED:
            introduced = tuple(
                txn for txn in entry.pending_commits if txn not in last.pending_commits
            )
            stack.append(JournalPosition(entry.offset, entry.pending_commits, introduced))
        elif entry.kind == SETTLED:
            stack[-1] = JournalPosition(last.offset, irrevocable=True)
        elif entry.kind == ROLLED_BACK:
            carried = stack.pop().pending_commits
            last = stack[-1]
            stack[-1] = JournalPosition(
                last.offset,
                tuple(txn for txn in last.pending_commits if txn in carried),
                tuple(txn for txn in last.introduced if txn in carried),
                last.irrevocable or any(txn not in carried for txn in last.introduced),
            )
    return stack[-1]
