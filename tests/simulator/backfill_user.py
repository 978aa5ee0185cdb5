"""A backfill as one job run of a simulated job: its user, who starts the driver until it succeeds.

The driver is the real one, in its own process, which may be killed or frozen at any time. If the
driver exits before the backfill is complete, the user starts it again with the same submission, as
the same command does. In some job runs a second driver starts on another host. One of the two
drivers then finds a newer claim in the journal.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from tests.simulator.cluster import SimCluster
from tests.simulator.plan import JobRun, Plan
from tests.simulator.processes import FAILED, guarded
from tests.simulator.scheduler import SimProcess
from tests.simulator.threads import SimQueue
from tests.simulator.wave_executor import SimExecutor
from tests.simulator.wave_faults import WaveFaults
from tidegate.backfill.driver import Backfill, WaveCompleted
from tidegate.config import Config
from tidegate.errors import (
    DataLossError,
    ExternalError,
    FencedError,
    JobClosedError,
    TidegateError,
    UserCodeError,
)
from tidegate.ports.processes import ExitStatus
from tidegate.protocol.errors import kind_of
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission

RESTART_DELAY_S: Final = 0.5
"""Time in seconds until the user starts the driver again."""
START_S: Final = 0.5
SECOND_AFTER_S: Final = 3.0
"""Longest time in seconds until a second driver is started."""
WAVES_MAX: Final = 5
"""Largest number of waves after which the user stops a backfill that ends by a stop."""


class BackfillUser:
    """The user of one backfill. `over` says whether the job run has ended."""

    def __init__(
        self,
        world: SimCluster,
        process: SimProcess,
        submission: Submission,
        config: Config,
        job_run: JobRun,
        plan: Plan,
    ) -> None:
        self._world, self._process, self._plan, self._job_run = world, process, plan, job_run
        self._submission, self._config = submission, config
        self._scheduler = world.scheduler
        self._rng = world.scheduler.random_for(f"backfill/{process.name}")
        self._exits = SimQueue(self._scheduler)
        self._site = self._scheduler.process(f"{process.name} engine")
        self._second: SimProcess | None = None
        self._drivers = 0
        self._waves = 0
        self.report: JobReport | None = None
        """Report of the job. It is always None, because a backfill has no report."""
        self.crashed = self._ended = False

    @property
    def over(self) -> bool:
        """Whether the job run has ended as planned: crashed, stopped or complete."""
        return self.crashed or self._ended

    def crash(self) -> None:
        """Kill the processes of this user. A second driver and the engine are on other hosts."""
        if self._process.alive:
            self.crashed = True
            self._process.kill()
            self._dismiss_second()

    def main(self) -> int:
        """Start drivers, one after the other, until the backfill is stopped or complete."""
        if self._rng.random() < self._faults.second_driver:
            after_s = SECOND_AFTER_S * self._rng.random()
            self._scheduler.call_later(after_s, self._start_second)
        while not self._ended:
            driver = self._start(self._process)
            while driver.alive and not self._ended:
                self._exits.get()
            if not self._ended:
                self._scheduler.wait(RESTART_DELAY_S)
        self._dismiss_second()
        return 0

    @property
    def _faults(self) -> WaveFaults:
        faults = self._plan.waves
        if faults is None:
            message = "a run with backfills has faults of waves"
            raise AssertionError(message)
        return faults

    def _start_second(self) -> None:
        """Start a second driver on another host, so that it survives the end of this process."""
        if self._process.alive and not self._world.request_faults.over:
            host = self._scheduler.process(f"{self._process.name} elsewhere")
            self._second = self._start(host)

    def _dismiss_second(self) -> None:
        """Kill the second driver if it has not claimed the journal.

        It could still claim the job later, which is allowed, and fence the next job run.
        """
        second = self._second
        if second is not None and self._world.watch.attempt_of(second) is None:
            second.kill()

    def _start(self, parent: SimProcess) -> SimProcess:
        self._drivers += 1
        driver = self._scheduler.process(f"{self._process.name} driver {self._drivers}", parent)
        driver.on_exit.append(
            lambda status: self._scheduler.call_later(0.0, partial(self._exits.put, status))
        )
        main = guarded(driver, partial(self._drive, driver), FAILED)
        self._scheduler.call_later(
            START_S * self._rng.uniform(0.2, 1.0),
            lambda: driver.run_main(main) if driver.alive else None,
        )
        return driver

    def _drive(self, driver: SimProcess) -> ExitStatus:
        """Run the main function of a driver."""
        rng = self._scheduler.random_for(f"executor/{driver.pid}")
        executor = SimExecutor(self._world, driver, self._site, self._faults, rng)
        backfill = Backfill(
            self._submission,
            self._config,
            self._world.drivers(driver),
            executor,
            wave_offsets=self._job_run.wave_offsets or 1,
            on_wave=partial(self._wave_done, driver),
        )
        stop_after = 1 + int(WAVES_MAX * self._job_run.ends_at_share)
        stops = self._job_run.ends == "stop"
        try:
            backfill.run(stop=lambda: stops and self._waves >= stop_after)
        except JobClosedError as error:
            if error.outcome != JobState.FINISHED.outcome:
                raise
            # An earlier driver that died before its exit, or the second driver, has finished it.
            self._scheduler.record_event("another driver has ended it: %s", error)
        except TidegateError as error:
            self._scheduler.record_event("the driver fails: %s", error)
            self._judge(error)
            return FAILED
        finally:
            executor.close()
        self._ended = True
        return 0

    def _wave_done(self, driver: SimProcess, wave: WaveCompleted) -> None:
        self._waves += 1
        self._world.watch.waves += 1
        self._scheduler.story.record(
            self._scheduler.now, driver.name, "wave of attempt %d is done: %s", wave.attempt, wave
        )

    def _judge(self, error: TidegateError) -> None:
        """Record a violation if a driver must not fail like this. The user then starts another."""
        excused = self._plan.crashing is not None or self._plan.failing_open is not None
        if isinstance(error, UserCodeError) and excused:
            return
        if isinstance(error, FencedError) and (self._second is not None or self.over):
            return
        wrong = isinstance(error, FencedError | DataLossError)
        if wrong or not isinstance(error, ExternalError):
            self._world.watch.record_violation(f"a driver fails: {kind_of(type(error))}: {error}")
