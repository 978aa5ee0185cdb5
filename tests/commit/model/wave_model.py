"""The model of a backfill's waves: runs and markers, ids and folders of runs, publication.

A wave is an attempt. Its driver claims, ends what is published, and fences what is not. It then has
tasks run level by level, and publishes their reports. These events may happen:

- A task runs several times, at any time, and each run sends its records to any receiver.
- A reader gets the rows of any run of a sender and, within a budget, other rows too.
- A run continues at any later time, also after the publication.
- The driver has the report of any run.
- Another driver claims at any time.
- An EndTxn arrives late or never.

Checked in every state:

- A record is visible at most once.
- Nothing is committed before its publication, and then only with exactly the prepared records.
- Nothing that is published is lost.
- If everything published has ended, the output is exactly the input up to the published positions.
- The state that a publication names is the state that its task has reported.

Checked in states without a possible step: no driver waits for a transaction that no driver ends.

These parts are simplified:

- A claim, a publication and a fence are one step each, because `model.py` has their late and
  unknown outcomes.
- A task takes all rows of all its senders in one step.
- A run writes one transaction, in one step with its prepare, upload and report.
- An attempt after the first runs each task `later_runs` times.

Not modelled: transaction timeouts, sweeps, transactions that zombies leave open (`model.py` has the
stalls), offsets within a wave, rows of reports.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.commit.model.broker import COMMIT as COMMITTED
from tests.commit.model.broker import ONGOING, Row, Tid, committed, find_row, store
from tests.commit.model.search import Violation
from tests.commit.model.wave_drivers import DriverSteps, Step
from tests.commit.model.wave_runs import RunSteps
from tests.commit.model.wave_state import (
    COMMIT,
    DECIDE,
    DONE,
    RUN,
    Driver,
    WaveBounds,
    WaveState,
)


class WaveModel:
    """Waves within bounds."""

    def __init__(self, bounds: WaveBounds) -> None:
        self._bounds = bounds

    def initial(self) -> WaveState:
        """The state before any driver has claimed."""
        bounds = self._bounds
        return WaveState(
            drivers=(),
            publications=(),
            broker=(),
            ends=frozenset(),
            tasks=(),
            files=(),
            output=(0,) * (bounds.waves * bounds.sources * bounds.records),
            faults=bounds.faults,
        )

    def steps(self, state: WaveState) -> Iterator[Step]:
        """Every step of the brokers, of drivers, and of runs of tasks."""
        if len(state.drivers) < self._bounds.attempts:
            yield self._claim(state)
        for tid, epoch in state.ends:
            yield from self._arrival(state, tid, epoch)
        for number, driver in enumerate(state.drivers):
            yield from DriverSteps(self._bounds, state, number).all()
            if driver.does != DECIDE:
                yield from RunSteps(self._bounds, state, number).all()

    def _claim(self, state: WaveState) -> Step:
        last = state.publications[-1] if state.publications else None
        named = last.pending_commits if last else ()
        positions = last.positions if last else (0,) * self._bounds.sources
        driver = Driver(DECIDE, positions, positions, named, named)
        empty = tuple(((),) * width for width in self._bounds.widths)
        after = state._replace(drivers=(*state.drivers, driver), tasks=(*state.tasks, empty))
        return f"driver {len(state.drivers)} claims", after

    def _arrival(self, state: WaveState, tid: Tid, epoch: int) -> Iterator[Step]:
        row = find_row(state.broker, tid)
        if row is None or row.epoch != epoch or row.status != ONGOING:
            return  # fenced, or done
        label = f"EndTxn {tid} epoch {epoch} arrives, records {row.records}"
        published = [
            txn.records
            for publication in state.publications
            for txn in publication.pending_commits
            if (txn.tid, txn.epoch) == (tid, epoch)
        ]
        output = committed(state.output, row.records)
        if max(output) > 1:
            raise Violation(f"duplicate: {label}")
        if not published:
            raise Violation(f"committed before its publication: {label}")
        if row.records not in published:
            raise Violation(f"other content committed than was prepared: {label}")
        broker = store(state.broker, Row(tid, COMMITTED, epoch, ()))
        yield label, state._replace(broker=broker, output=output)

    # --- what holds -----------------------------------------------------------------------------

    def check(self, state: WaveState) -> None:
        """In every state."""
        if not state.drivers:
            return
        latest = state.drivers[-1]
        if latest.does in {RUN, DONE}:
            self._check_output(state, latest)
        if state.publications:
            stored = dict(state.files)
            for path, content in state.publications[-1].files:
                if stored[path] != content:
                    raise Violation(
                        f"the published state at {path} was {content} and is {stored[path]}"
                    )

    def _check_output(self, state: WaveState, latest: Driver) -> None:
        bounds = self._bounds
        exact = tuple(
            int(wave < latest.positions[source])
            for wave in range(bounds.waves)
            for source in range(bounds.sources)
            for _ in range(bounds.records)
        )
        if state.output != exact:
            less = sum(state.output) < sum(exact)
            kind = "silent loss" if less else "output ahead of the published positions"
            raise Violation(
                f"{kind}: the job stands on {latest.positions}, all ended, but output is "
                f"{state.output}"
            )

    def check_end(self, state: WaveState) -> None:
        """Checks a state in which no step is possible."""
        if state.drivers[-1].does in {DECIDE, COMMIT}:
            raise Violation(f"stuck: the last driver waits for {state.drivers[-1].unended}")
