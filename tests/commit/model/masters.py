"""Steps of a JobMaster: claim, decide, fence, deploy, publish, end, sweep, settle, roll back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.commit.model.broker import (
    ABORT,
    COMMIT,
    EMPTY,
    ONGOING,
    Broker,
    Row,
    Tid,
    Txn,
    init_producer,
    verdict,
)
from tests.commit.model.state import (
    BARRIER,
    CLAIMED,
    DEAD,
    DECIDE,
    DEPLOY,
    FAILED,
    FENCE,
    LATE_CLAIM,
    LIST,
    LOST,
    PUBLISHED,
    ROLLED_BACK,
    RUN,
    SETTLED,
    WAIT,
    Bounds,
    Create,
    End,
    Entry,
    Master,
    Sink,
    State,
    Tasks,
    find_position,
)

Step = tuple[str, State]


@dataclass(frozen=True, slots=True)
class MasterSteps:
    """The steps that the JobMaster of one attempt can take in one state."""

    bounds: Bounds
    state: State
    number: int

    @property
    def me(self) -> Master:
        """The JobMaster."""
        return self.state.masters[self.number]

    def all(self) -> Iterator[Step]:
        """Every step that it may take now."""
        match self.me.does:
            case "claim":
                yield self._claim()
            case "late claim":
                entry = Entry(CLAIMED, self.number)
                me = self.me._replace(does=DECIDE, known=len(self.state.journal))
                yield self._go("claims", me, journal=(*self.state.journal, entry))
            case "decide":
                yield from self._decide()
            case "list":
                yield self._list()
            case "fence":
                yield self._fence()
            case "deploy":
                yield self._go("deploys", self.me._replace(does=RUN), deployed=True)
            case "run":
                yield from self._commit_pending()
                yield from self._run()
            case "wait":
                yield from self._commit_pending()
                yield from self._await_publication()
            case _:
                pass

    def _go(self, label: str, me: Master, *, deployed: bool = False, **changes: Any) -> Step:
        after = self.state.with_master(self.number, me)._replace(**changes)
        if deployed and after.tasks[self.number] is None:
            sinks = (Sink(),) * self.bounds.sinks
            after = after.with_tasks(self.number, Tasks(self.me.offset, None, 0, sinks, ()))
        return f"JM{self.number} {label}", after

    def _is(self, broken: str) -> bool:
        return self.bounds.broken == broken

    # --- recovery -------------------------------------------------------------------------------

    def _claim(self) -> Step:
        journal = self.state.journal
        last = find_position(journal)
        me = self.me._replace(
            offset=last.offset,
            named=last.pending_commits,
            unended=last.pending_commits,
            txns=last.pending_commits,
        )
        first = LIST if self._is("fence before commit") else DECIDE
        if self._is("no claim"):
            me = me._replace(does=first, known=len(journal) - 1)
            return self._go("reads, claims nothing", me)
        if self._is("claim after read"):
            return self._go("reads", me._replace(does=LATE_CLAIM, known=len(journal)))
        entry = Entry(CLAIMED, self.number)
        me = me._replace(does=first, known=len(journal))
        return self._go("claims and reads", me, journal=(*journal, entry))

    def _decide(self) -> Iterator[Step]:
        me, broker = self.me, self.state.broker
        if not me.txns:
            then = DEPLOY if self._is("fence before commit") else LIST
            yield self._go("has ended all", me._replace(does=then, unended=()))
            return
        retracts = "retract" in self.bounds.rules
        if retracts and any(verdict(broker, txn) == "lost" for txn in me.named):
            yield from self._roll_back()
            return
        for txn in me.txns:
            found = verdict(broker, txn)
            if found == "done" or (found == "lost" and self._is("loss ignored")):
                rest = tuple(each for each in me.txns if each != txn)
                yield self._go(f"sees {txn.tid} {found}, goes on", me._replace(txns=rest))
            elif found == "lost":
                yield self._lost(txn)
            else:
                yield from self._send_end(txn)

    def _lost(self, txn: Txn) -> Step:
        """A transaction is found lost. The verdict counts only if this JobMaster is the latest one.
        With the rule for rolling back, the next attempt decides.
        """
        me = self.me
        if "retract" in self.bounds.rules and me.does in {RUN, WAIT}:
            return self._go(f"finds {txn.tid} lost, fails", me._replace(does=DEAD))
        does = LOST if self.number == self.state.latest else DEAD
        return self._go(f"finds {txn.tid} lost", me._replace(does=does))

    def _send_end(self, txn: Txn, *, commit: bool = True) -> Iterator[Step]:
        end = End(txn.tid, txn.epoch, commit)
        if end not in self.state.ends:
            what = "EndTxn" if commit else "EndTxn(abort)"
            yield self._go(f"sends {what} {txn.tid}", self.me, ends=self.state.ends | {end})

    def _list(self) -> Step:
        broker = self.state.broker
        if self._is("fence before commit"):
            found = tuple(row.tid for row in broker)
        elif self._is("no fencing"):
            found = ()
        else:
            found = tuple(row.tid for row in broker if self._is_listed(row))
        me = self.me._replace(does=FENCE, ids=found)
        early = self._is("sources before fencing")
        return self._go(f"lists {len(found)} ids to fence", me, deployed=early)

    def _is_listed(self, row: Row) -> bool:
        """Complete ones are left out: a backfill of a thousand waves has hundreds of thousands."""
        complete = self._is("fence complete ids") or self._is("fence named ids")
        left_out = set() if complete else {COMMIT, ABORT}
        if self._is("fence only Ongoing"):
            left_out = {EMPTY, COMMIT, ABORT}
        return self._may_fence(row.tid) and row.status not in left_out

    def _may_fence(self, tid: Tid) -> bool:
        """Only ids of strictly older attempts, never one that an unsettled publication names."""
        if self._is("sweep newer attempts"):
            if tid[0] == self.number:
                return False
        elif tid[0] >= self.number and not self._is("id without attempt"):
            return False
        return self._is("fence named ids") or tid not in [txn.tid for txn in self.me.named]

    def _fence(self) -> Step:
        me = self.me
        if me.ids:
            broker, _ = init_producer(self.state.broker, me.ids[0])
            return self._go(f"fences {me.ids[0]}", me._replace(ids=me.ids[1:]), broker=broker)
        if self._is("fence before commit"):
            return self._go("is done fencing", me._replace(does=DECIDE, txns=me.named))
        return self._go("is done fencing", me._replace(does=DEPLOY))

    # --- a live attempt -------------------------------------------------------------------------

    def _commit_pending(self) -> Iterator[Step]:
        me = self.me
        for txn in me.unended:
            found = verdict(self.state.broker, txn)
            if found == "done":
                rest = tuple(each for each in me.unended if each != txn)
                yield self._go(f"sees {txn.tid} committed", me._replace(unended=rest))
            elif found == "lost":
                yield self._lost(txn)
            else:
                yield from self._send_end(txn)

    def _run(self) -> Iterator[Step]:
        me, state, rules = self.me, self.state, self.bounds.rules
        owns_end = len(state.journal) == me.known + 1
        if "settle" in rules and me.named and not me.unended and owns_end:
            entry = Entry(SETTLED, self.number)
            after = me._replace(known=me.known + 1, named=())
            yield self._go("settles", after, journal=(*state.journal, entry))
        if "resweep" in rules and not self._is("no fencing"):
            for row in state.broker:
                if row.status == ONGOING and self._may_fence(row.tid):
                    fenced, _ = init_producer(state.broker, row.tid)
                    yield self._go(f"sweeps {row.tid}", me, broker=fenced)
        yield from self._publish()

    def _publish(self) -> Iterator[Step]:
        me, state, tasks = self.me, self.state, self.state.tasks[self.number]
        if tasks is None or tasks.barrier is None:
            return
        if any(sink.does in {BARRIER, FAILED} for sink in tasks.sinks):
            return
        early = {End(txn.tid, txn.epoch, True) for txn in tasks.prepared} - state.ends
        if early and self._is("EndTxn before publication"):
            yield self._go("sends EndTxn early", me, ends=state.ends | early)
        gone = any(verdict(state.broker, txn) != "open" for txn in tasks.prepared)
        if gone and "precheck" in self.bounds.rules:
            yield self._go("sees a prepared transaction gone, fails", me._replace(does=DEAD))
            return
        pending_commits = tasks.prepared
        if not self._is("unended not carried"):
            pending_commits = me.unended + pending_commits
        sent = Create(me.known + 1, Entry(PUBLISHED, self.number, tasks.barrier, pending_commits))
        yield self._go(
            f"sends publication of offset {tasks.barrier} as {sent.number}",
            me._replace(does=WAIT, sent=sent),
            creates=tuple(sorted((*state.creates, sent))),
        )

    def _await_publication(self) -> Iterator[Step]:
        me, state, tasks = self.me, self.state, self.state.tasks[self.number]
        if me.sent is None or tasks is None:
            return
        number, mine = me.sent
        anywhere = self._is("publication not through the journal")
        if len(state.journal) > number and (state.journal[number] == mine or mine in state.journal):
            after = me._replace(
                does=RUN,
                sent=None,
                known=state.journal.index(mine) if anywhere else number,
                offset=mine.offset,
                named=mine.pending_commits,
                unended=mine.pending_commits,
            )
            label, seen = self._go("sees its publication", after)
            done = tasks._replace(barrier=None, done=tasks.done + 1, prepared=())
            yield label, seen.with_tasks(self.number, done)
        elif len(state.journal) > number:
            yield self._go("is fenced", me._replace(does=DEAD))
        yield from self._give_up(tasks)

    def _give_up(self, tasks: Tasks) -> Iterator[Step]:
        """Steps that a JobMaster must not take while the outcome of its publication is unknown."""
        dead = self.me._replace(does=DEAD)
        if self._is("unknown create is failure"):
            broker: Broker = self.state.broker
            for txn in tasks.prepared:
                broker, _ = init_producer(broker, txn.tid)
            yield self._go("takes the timeout for a failure, aborts", dead, broker=broker)
        if self._is("delayed EndTxn(abort)"):
            aborts = {End(txn.tid, txn.epoch, False) for txn in tasks.prepared}
            ends = self.state.ends | aborts
            yield self._go("gives up, sends EndTxn(abort)", dead, ends=ends)

    # --- a publication that is taken back -------------------------------------------------------

    def _roll_back(self) -> Iterator[Step]:
        """Reacts to the loss of a transaction that the publication names. The publication is rolled
        back if no transaction that it was the first to name is committed.
        """
        me, state = self.me, self.state
        known = state.journal[: me.known + 1]  # a newer claim may have followed
        last = find_position(known)
        verdicts = {txn: verdict(state.broker, txn) for txn in me.named}
        commit = last.irrevocable or any(verdicts[txn] == "done" for txn in last.introduced)
        commit = commit and not self._is("retract after a commit")
        still_open = [
            txn for txn in (me.named if commit else last.introduced) if verdicts[txn] == "open"
        ]
        for txn in still_open:
            # EndTxn(abort) cannot hit what is committed; InitProducerId would hide that it was.
            yield from self._send_end(txn, commit=commit)
        if still_open:
            return
        if commit:
            yield self._lost(next(txn for txn in me.named if verdicts[txn] == "lost"))
        elif len(state.journal) != me.known + 1:
            yield self._go("is fenced", me._replace(does=DEAD))
        else:
            entry = Entry(ROLLED_BACK, self.number)
            before = find_position((*known, entry))
            pending_commits = before.pending_commits
            after = me._replace(
                known=me.known + 1,
                offset=before.offset,
                named=pending_commits,
                unended=pending_commits,
                txns=pending_commits,
            )
            yield self._go("retracts the publication", after, journal=(*state.journal, entry))
