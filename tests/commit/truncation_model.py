"""An explicit-state model of one journal that is truncated while late creates are in flight.

The search visits every interleaving breadth first, like the protocol's model. No step kills or
freezes a writer: one that is not scheduled is dead, and one that is scheduled late is a zombie. A
create that was sent may land at any later time and any number of times, because a store retries or
a proxy holds a request. It lands only where no entry exists. The oldest entry below the snapshot
may be deleted at any time.

Whenever a writer counts its entry as written, the model checks that no other writer's entry had
that number first. `look` is what a writer checks before it counts its entry:

- `nothing`: that its entry exists;
- `predecessor`: that the entry before it, which it followed, still exists too;
- `hint`: that no snapshot beyond its entry exists.

Not modelled: what entries mean, and how a reader finds the end (it always finds the true one).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

WAITS = "waits"
IDLE = "idle"
GONE = "gone"


class Writer(NamedTuple):
    """The knowledge of one attempt: the last entry that it has read or written, and that entry's
    writer.
    """

    state: str = GONE
    known: int = 0
    by: int = -1


class State(NamedTuple):
    """A state of the store and of all writers."""

    taken: tuple[int, ...]
    """The first writer of each number, from 1."""
    present: frozenset[tuple[int, int]]
    """Number and writer of what stands there."""
    sent: frozenset[tuple[int, int]]
    snapshot: int
    writers: tuple[Writer, ...]
    begun: int


class WronglyCountedError(AssertionError):
    """A writer counts an entry as written that no reader reads. The message lists the steps."""


Step = tuple[str, State]


def search(look: str, *, writers: int = 2, entries: int = 5) -> int:
    """Visit every state and return how many there are; WronglyCountedError with a shortest run."""
    start = State((), frozenset(), frozenset(), 0, (Writer(),) * writers, 0)
    parents: dict[State, Step | None] = {start: None}
    level = [start]
    while level:
        following: list[State] = []
        for state in level:
            for label, after in _steps(state, look, entries):
                if label.endswith("wrongly"):
                    raise WronglyCountedError("; ".join([*_run(parents, state), label]))
                if after not in parents:
                    parents[after] = (label, state)
                    following.append(after)
        level = following
    return len(parents)


def _run(parents: dict[State, Step | None], state: State) -> list[str]:
    labels: list[str] = []
    while (came := parents[state]) is not None:
        labels.append(came[0])
        state = came[1]
    return labels[::-1]


def _steps(state: State, look: str, entries: int) -> Iterator[Step]:
    yield from _world(state)
    if state.begun < len(state.writers):
        last = len(state.taken)
        new = Writer(IDLE, last, state.taken[-1] if last else -1)
        after = _with(state, state.begun, new)._replace(begun=state.begun + 1)
        yield f"{state.begun} begins after entry {last}", after
    for me, writer in enumerate(state.writers):
        number = writer.known + 1
        if writer.state == IDLE and number <= entries:
            sent = state.sent | {(number, me)}
            waits = writer._replace(state=WAITS)
            yield f"{me} sends {number}", _with(state, me, waits)._replace(sent=sent)
        if writer.state == IDLE and writer.by == me and writer.known > state.snapshot:
            yield f"{me} writes snapshot {writer.known}", state._replace(snapshot=writer.known)
        if writer.state == WAITS and (number, me) in state.present:
            if not _counts(state, me, number, look):
                yield f"{me} is fenced", _with(state, me, Writer())
            else:
                wrongly = "" if state.taken[number - 1] == me else ", wrongly"
                yield f"{me} counts {number}{wrongly}", _with(state, me, Writer(IDLE, number, me))
        elif writer.state == WAITS and any(n == number for n, _ in state.present):
            yield f"{me} is fenced", _with(state, me, Writer())


def _world(state: State) -> Iterator[Step]:
    for number, writer in state.sent:
        if any(n == number for n, _ in state.present) or number > len(state.taken) + 1:
            continue
        after = state._replace(present=state.present | {(number, writer)})
        if number > len(state.taken):
            after = after._replace(taken=(*state.taken, writer))
        yield f"{number} of {writer} lands", after
    if state.present:
        oldest = min(state.present)
        if oldest[0] < state.snapshot:
            yield f"{oldest[0]} is trimmed", state._replace(present=state.present - {oldest})


def _counts(state: State, me: int, number: int, look: str) -> bool:
    if look == "nothing":
        return True
    if look == "snapshot" or number == 1:  # the first entry follows nothing that could be looked at
        return state.snapshot <= number
    return (number - 1, state.writers[me].by) in state.present


def _with(state: State, index: int, writer: Writer) -> State:
    writers = (*state.writers[:index], writer, *state.writers[index + 1 :])
    return state._replace(writers=writers)
