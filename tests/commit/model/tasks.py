"""The steps of an attempt's tasks: they write into transactions, and prepare them at barriers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.commit.model.broker import (
    ABORT,
    COMMIT,
    EMPTY,
    ONGOING,
    Row,
    Tid,
    Txn,
    find_row,
    init_producer,
    store,
)
from tests.commit.model.masters import Step
from tests.commit.model.state import (
    BARRIER,
    FAILED,
    INIT,
    RUN,
    WRITE,
    Bounds,
    End,
    Sink,
    State,
    Tasks,
)


@dataclass(frozen=True, slots=True)
class TaskSteps:
    """The steps that the tasks of one attempt can take in one state."""

    bounds: Bounds
    state: State
    number: int
    tasks: Tasks

    def all(self) -> Iterator[Step]:
        """Every step that they may take now."""
        for index, sink in enumerate(self.tasks.sinks):
            if sink.does == INIT and self.tasks.position < self.bounds.records:
                yield from self._begin(index, sink)
            elif sink.does == BARRIER:
                yield self._prepare(index, sink)
        if self.tasks.position < self.bounds.records:
            yield from self._write(self.tasks.position % self.bounds.sinks)
        yield from self._barriers()

    def _go(self, label: str, tasks: Tasks) -> Step:
        return f"task{self.number} {label}", self.state.with_tasks(self.number, tasks)

    def _with(self, index: int, sink: Sink) -> Tasks:
        sinks = self.tasks.sinks
        return self.tasks._replace(sinks=(*sinks[:index], sink, *sinks[index + 1 :]))

    def _is(self, broken: str) -> bool:
        return self.bounds.broken == broken

    def _tid(self, index: int, slot: int) -> Tid:
        return (0 if self._is("id without attempt") else self.number, index, slot)

    def _begin(self, index: int, sink: Sink) -> Iterator[Step]:
        """A transaction begins under a free id, by a producer of its own."""
        tasks = self.tasks
        if self._is("one producer, many transactions") and tasks.done + len(tasks.prepared) > 0:
            # It waits for the commit and continues with the same epoch.
            row = find_row(self.state.broker, self._tid(index, sink.slot))
            if row and row.status == COMMIT and row.epoch == sink.epoch:
                again = self._with(index, sink._replace(does=WRITE))
                yield self._go(f"sink{index} begins again", again)
            return
        taken = self._taken()
        free = [slot for slot in range(self.bounds.slots) if self._tid(index, slot) not in taken]
        if not free:
            return
        tid = self._tid(index, free[0])
        broker, epoch = init_producer(self.state.broker, tid)
        label, after = self._go(
            f"sink{index} inits {tid} epoch {epoch}",
            self._with(index, Sink(free[0], epoch, WRITE)),
        )
        after = after._replace(broker=broker)
        if self._is("late duplicate InitProducerId"):
            after = after._replace(ends=after.ends | {End(tid, epoch, None)})
        yield label, after

    def _taken(self) -> set[Tid]:
        """Ids of prepared transactions, and those that the journal names."""
        taken = {txn.tid for txn in self.tasks.prepared}
        if self._is("slot reuse before commit"):
            return taken
        master = self.state.masters[self.number]
        named = () if self._is("slot reuse once committed") else master.named
        return taken | {txn.tid for txn in (*master.unended, *named)}

    def _prepare(self, index: int, sink: Sink) -> Step:
        tid = self._tid(index, sink.slot)
        row = find_row(self.state.broker, tid)
        if row is None:
            message = f"{tid} was never initialised"
            raise AssertionError(message)
        if row.epoch == sink.epoch and row.status == EMPTY:
            empty = self._with(index, sink._replace(does=WRITE))
            return self._go(f"sink{index} has nothing to prepare", empty)
        is_open = row.epoch == sink.epoch and row.status == ONGOING
        if not is_open and not self._is("no Describe at prepare"):
            return self._go(f"sink{index} fails", self._with(index, sink._replace(does=FAILED)))
        ready = self._with(index, sink._replace(does=INIT))
        prepared = (*self.tasks.prepared, Txn(tid, sink.epoch, row.records))
        label = f"sink{index} prepares {tid} {row.records}"
        return self._go(label, ready._replace(prepared=prepared))

    def _write(self, index: int) -> Iterator[Step]:
        sink, position = self.tasks.sinks[index], self.tasks.position
        if sink.does != WRITE:
            return
        tid = self._tid(index, sink.slot)
        row = find_row(self.state.broker, tid)
        # A transaction of version 1: a write also opens a committed one of the same epoch again.
        if row is None or row.epoch != sink.epoch or row.status == ABORT:
            fenced = self._with(index, sink._replace(does=FAILED))
            yield self._go(f"sink{index} is fenced", fenced)
            return
        written = Row(tid, ONGOING, sink.epoch, (*row.records, position))
        label, after = self._go(
            f"sink{index} writes {position} to {tid}",
            self.tasks._replace(position=position + 1),
        )
        yield label, after._replace(broker=store(self.state.broker, written))

    def _barriers(self) -> Iterator[Step]:
        tasks, master = self.tasks, self.state.masters[self.number]
        if master.does != RUN:
            return
        more = tasks.done < self.bounds.checkpoints and tasks.position > master.offset
        if tasks.barrier is None and more:
            sinks = self._all(WRITE, BARRIER)
            yield self._go(
                f"barrier at {tasks.position}",
                tasks._replace(barrier=tasks.position, sinks=sinks),
            )
        if tasks.barrier is not None and self.state.aborts_left:
            kept = () if self._is("aborted checkpoint drops prepared") else tasks.prepared
            aborted = tasks._replace(barrier=None, sinks=self._all(BARRIER, WRITE), prepared=kept)
            label, after = self._go("checkpoint aborted", aborted)
            yield label, after._replace(aborts_left=self.state.aborts_left - 1)

    def _all(self, was: str, becomes: str) -> tuple[Sink, ...]:
        return tuple(
            sink._replace(does=becomes) if sink.does == was else sink for sink in self.tasks.sinks
        )
