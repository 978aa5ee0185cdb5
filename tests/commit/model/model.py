"""The model of the commit protocol of a live job: claim, publication, EndTxn, fencing, slot reuse.

JobMasters and tasks take their steps. In addition, these events may happen:

- A create lands late. Its sender learns the outcome only by reading the entry.
- An EndTxn that was sent arrives at any later time, any number of times, or never. It no longer
  arrives after its sender has seen its effect.
- A transaction times out.
- A checkpoint is aborted.

A transactional id is (attempt, sink subtask, slot).

Checked in every state:

- A record is visible at most once.
- Nothing is committed before its publication, and then only with exactly the prepared records.
- If everything published has ended, the output is exactly the input up to the published offset.
- A loss is reported only if a transaction timed out after its publication was sent. If publications
  may be rolled back, a transaction that this publication was the first to name must also be
  committed.

Checked in states without a possible step: no process is stuck, and no transaction of a dead attempt
is left open.

Not modelled: channels, rescaling, savepoints, and what `broker.py` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.commit.model.broker import (
    ABORT,
    COMMIT,
    ONGOING,
    Row,
    committed,
    find_row,
    init_producer,
    store,
)
from tests.commit.model.masters import MasterSteps, Step
from tests.commit.model.search import Violation
from tests.commit.model.state import (
    CLAIM,
    DEAD,
    LATE_CLAIM,
    LOST,
    NOT_STARTED,
    PUBLISHED,
    RUN,
    Bounds,
    Create,
    End,
    Master,
    State,
)
from tests.commit.model.tasks import TaskSteps


class LiveModel:
    """The protocol within bounds."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def initial(self) -> State:
        """The state before any attempt has started."""
        bounds = self._bounds
        return State(
            journal=(),
            creates=(),
            broker=(),
            ends=frozenset(),
            masters=(Master(),) * bounds.attempts,
            tasks=(None,) * bounds.attempts,
            output=(0,) * bounds.records,
            timeouts=(),
            started=0,
            timeouts_left=bounds.timeouts,
            aborts_left=bounds.aborts,
        )

    def steps(self, state: State) -> Iterator[Step]:
        """Every step of the world, of the JobMasters and of the tasks."""
        yield from self._starts(state)
        for create in state.creates:
            yield from self._landings(state, create)
        for end in state.ends:
            yield from self._arrivals(state, end)
        if state.timeouts_left:
            for row in state.broker:
                if row.status == ONGOING:
                    yield self._timeout(state, row)
        for number, master in enumerate(state.masters):
            if master.does not in {NOT_STARTED, DEAD, LOST}:
                yield from MasterSteps(self._bounds, state, number).all()
            tasks = state.tasks[number]
            if tasks is not None:
                yield from TaskSteps(self._bounds, state, number, tasks).all()

    # --- the world ------------------------------------------------------------------------------

    def _starts(self, state: State) -> Iterator[Step]:
        number, masters = state.started, state.masters
        if number == len(masters):
            return
        if number == 0 or masters[number - 1].does not in {CLAIM, LATE_CLAIM}:
            after = state.with_master(number, Master(does=CLAIM))
            yield f"JM{number} starts", after._replace(started=number + 1)

    def _landings(self, state: State, create: Create) -> Iterator[Step]:
        number, entry = create
        what = f"create {number} by JM{entry.by}"
        after = state._replace(creates=tuple(each for each in state.creates if each != create))
        anywhere = self._bounds.broken == "publication not through the journal"
        if number == len(state.journal) or anywhere:
            yield f"{what} lands", after._replace(journal=(*state.journal, entry))
            return
        newer = state.journal[number + 1 :]
        trims = self._bounds.broken == "journal trimmed"
        if trims and any(each.kind == PUBLISHED for each in newer):
            # The number was taken and is deleted since: the create succeeds, in the past.
            believes = state.masters[entry.by]._replace(
                does=RUN,
                offset=entry.offset,
                named=entry.pending_commits,
                unended=entry.pending_commits,
            )
            yield f"{what} lands at a trimmed number", after.with_master(entry.by, believes)
        else:
            yield f"{what} refused", after

    def _arrivals(self, state: State, end: End) -> Iterator[Step]:
        row = find_row(state.broker, end.tid)
        if end.commit is None:
            broker, _ = init_producer(state.broker, end.tid)
            label = f"late duplicate of InitProducerId {end.tid}"
            yield label, state._replace(broker=broker, ends=state.ends - {end})
        elif row is None or row.epoch != end.epoch or row.status != ONGOING:
            return  # fenced, done or invalid: it has no effect
        elif not end.commit:
            aborted = store(state.broker, Row(end.tid, ABORT, end.epoch, ()))
            yield f"EndTxn(abort) {end.tid}", state._replace(broker=aborted)
        else:
            yield self._commit(state, row)

    def _commit(self, state: State, row: Row) -> Step:
        label = f"EndTxn(commit) {row.tid} epoch {row.epoch} arrives, records {row.records}"
        published = [
            txn.records
            for entry in state.journal
            for txn in entry.pending_commits
            if (txn.tid, txn.epoch) == (row.tid, row.epoch)
        ]
        output = committed(state.output, row.records)
        if max(output) > 1:
            raise Violation(f"duplicate: {label}")
        if not published:
            raise Violation(f"committed before its publication: {label}")
        if row.records not in published:
            raise Violation(f"half-written content committed: {label}")
        broker = store(state.broker, Row(row.tid, COMMIT, row.epoch, ()))
        return label, state._replace(broker=broker, output=output)

    @staticmethod
    def _timeout(state: State, row: Row) -> Step:
        entries = [create.entry for create in state.creates] + list(state.journal)
        named = {(txn.tid, txn.epoch) for entry in entries for txn in entry.pending_commits}
        when = "late" if (row.tid, row.epoch) in named else "early"
        aborted = Row(row.tid, ABORT, row.epoch + 1, ())
        after = state._replace(
            broker=store(state.broker, aborted),
            timeouts=(*state.timeouts, when),
            timeouts_left=state.timeouts_left - 1,
        )
        words = {"late": "after publication", "early": "before publication"}
        return f"{row.tid} times out ({words[when]})", after

    # --- what holds -----------------------------------------------------------------------------

    def check(self, state: State) -> None:
        """In every state."""
        if state.latest is None:
            return
        master, output = state.masters[state.latest], state.output
        if master.does == RUN and not master.unended:
            exact = tuple(int(record < master.offset) for record in range(self._bounds.records))
            if output != exact:
                less = sum(output) < sum(exact)
                kind = "silent loss" if less else "output ahead of the live attempt"
                raise Violation(
                    f"{kind}: it stands on offset {master.offset}, all ended, but output is "
                    f"{output}"
                )
        if master.does != LOST:
            return
        retracts = "retract" in self._bounds.rules
        if retracts and not any(output[self._before(state, master) :]):
            raise Violation(
                f"loss reported although nothing of the publication was committed; output {output}"
            )
        if "late" not in state.timeouts:
            when = "a timeout before publication" if state.timeouts else "no timeout at all"
            raise Violation(f"loss reported after {when}; output {output}")

    @staticmethod
    def _before(state: State, master: Master) -> int:
        """The offset of the publication before the one that a JobMaster stands on."""
        offsets = [entry.offset for entry in state.journal if entry.kind == PUBLISHED]
        return max((offset for offset in offsets if offset < master.offset), default=0)

    def check_end(self, state: State) -> None:
        """Checks a state in which no step is possible."""
        last = state.latest
        if last is None:
            raise Violation("stuck: nobody has claimed")
        master, tasks = state.masters[last], state.tasks[last]
        unended = {txn.tid for txn in master.unended}
        for row in state.broker:
            is_open = row.status == ONGOING and row.tid[0] != last
            if is_open and master.does == RUN and row.tid not in unended:
                raise Violation(
                    f"stall: {row.tid} of a dead attempt stays Ongoing with {row.records}"
                )
        if state.timeouts:
            return  # a timeout may stop the last attempt, and no further attempt is left to start
        if tasks is None or master.does != RUN or master.unended or tasks.barrier is not None:
            raise Violation(f"stuck: the last JobMaster in {master.does}, {master.unended} open")
        if tasks.done < self._bounds.checkpoints and tasks.position < self._bounds.records:
            raise Violation(f"stuck: tasks stop at record {tasks.position}, {tasks.sinks}")
