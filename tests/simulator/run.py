"""One run of the simulator: it takes a seed and returns a verdict.

The seed draws a plan (`plan.py`) and all faults of the run. The faults end at a given time. After
that the job must reach its end, and its output must be exact. The oracle and the protocol checker
check the whole run. The verdict is the first violation, the first exception that left a thread, or
a job that does not reach its end.
"""

from __future__ import annotations

import contextlib
import platform
import random
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.simulator.backfill_plan import with_backfills
from tests.simulator.backfill_user import BackfillUser
from tests.simulator.calendar_plan import with_local_days
from tests.simulator.cluster import STORAGE, SimCluster
from tests.simulator.event_time_plan import patch_event_time, with_event_time
from tests.simulator.fault_injector import FaultInjector
from tests.simulator.faults import RequestFaults
from tests.simulator.kafka.log import PartitionLog, Record
from tests.simulator.mishaps import Mishaps
from tests.simulator.network_conditions import MessageFaults
from tests.simulator.oracle import Oracle
from tests.simulator.patches import (
    CODE_DIGEST,
    apply_patches,
    patch_connect,
    patch_guarantees,
    patch_load,
    patch_salt,
)
from tests.simulator.pipelines import Event
from tests.simulator.plan import Input, JobRun, Plan
from tests.simulator.result_groups import Violation
from tests.simulator.retention import Retention
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.session_cluster import SessionCluster
from tests.simulator.stamped_plan import with_stamps
from tests.simulator.swaps import Swaps
from tests.simulator.trace import Trace, TraceEvent
from tests.simulator.window_plan import with_more_windows
from tidegate.api.pipeline import build
from tidegate.commit.journal.entries import Claim, Lost, Publication, RolledBack
from tidegate.config import Config
from tidegate.config_load import checked
from tidegate.controlplane.client.client import Client
from tidegate.controlplane.client.local import LocalCluster
from tidegate.errors import (
    DataLossError,
    ExternalError,
    RefusedError,
    RpcError,
    StopTimedOutError,
)
from tidegate.ids import JobName
from tidegate.protocol.errors import kind_of
from tidegate.protocol.job_state import ENDED, JobState
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import Submission
from tidegate.protocol.versions import TIDEGATE
from tidegate.stream_elements import TopicPartition

QUIET_S: Final = 800.0
"""Longest time in seconds from the last fault to the end of the job. The longest wait in this time
is 30 s for slots, after restart delays that have grown to 30 s. A job with slow user code, of which
no checkpoint may fail, can need several minutes.
"""
CHECK_INTERVAL_S: Final = 5.0
RESTART_DELAY_S: Final = 1.0
"""Time in seconds until the user runs a job again."""
LOSS_REPORTS_MIN: Final = 2
"""Number of reports of a loss before the user accepts it. Until then the job must stay failed."""
INPUT_PRODUCER: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a seed."""

    seed: int
    violation: str | None
    """Text of the violation. None means that the run was exact."""
    story: Trace
    plan: Plan
    virtual_s: float
    turns: int
    kills: int
    freezes: int
    attempts: int
    publications: int
    waves: int
    """Number of completed waves of backfills."""
    rollbacks: int
    losses: int
    """Number of losses that the journal states. They were expected, and then accepted."""
    visible: int
    """Number of results that readers saw."""
    fired: int
    """Number of timers that have fired, as readers saw."""
    expired: int
    """Number of input offsets that retention deleted."""


def run_seed(
    seed: int,
    *,
    listen: Callable[[TraceEvent], None] | None = None,
    digest: bool = False,
    backfills: bool = False,
    event_time: bool = False,
) -> Outcome:
    """Simulate one seed to its end. Exceptions of the simulated processes are not raised.

    With `backfills`, some job runs are backfills. With `event_time`, the pipeline has timers.
    """
    story = Trace(listen=listen)
    if digest:
        story.with_digest()
    scheduler = Scheduler(seed, story=story)
    with apply_patches(scheduler) as folder:
        plan = plan_of(seed, backfills=backfills, event_time=event_time)
        run = Run(seed, plan, scheduler, folder)
        with (
            patch_load(scheduler, plan.load, plan.crashing),
            patch_connect(scheduler, plan.failing_open),
            patch_guarantees(plan.shape),
            patch_event_time(plan.shape, plan.event_time),
            patch_salt(run.world.salts),
        ):
            try:
                run.run_to_end()
            finally:
                scheduler.close()
    return run.outcome()


def plan_of(seed: int, *, backfills: bool = False, event_time: bool = False) -> Plan:
    """Return the plan that a seed draws."""
    plan = Plan.drawn(random.Random(f"{seed}/plan"))
    if backfills:
        plan = with_backfills(plan, random.Random(f"{seed}/backfills"))
    if event_time:
        plan = with_event_time(plan, random.Random(f"{seed}/event time"))
        plan = with_more_windows(plan, random.Random(f"{seed}/windows"))
        plan = with_local_days(plan, random.Random(f"{seed}/local days"))
        plan = with_stamps(plan, random.Random(f"{seed}/timestamps"))
    return plan


class Run:
    """The execution of a plan."""

    def __init__(self, seed: int, plan: Plan, scheduler: Scheduler, folder: Path) -> None:
        self._seed, self._scheduler, self._folder = seed, scheduler, folder
        self.plan = plan
        self._oracle = Oracle(plan.shape, plan.event_time)
        self._request_faults = RequestFaults(scheduler, plan.fault_rates)
        self.world = SimCluster(scheduler, self._request_faults, self._oracle)
        self.world.network.delivery = MessageFaults(
            plan.conditions, scheduler.random_for("weather")
        )
        self._fault_injector = FaultInjector(self.world, plan.fault_rates)
        self._checker = self.world.watch
        self._checker.may_lose = bool(plan.fault_rates.blackout)
        self._mishaps = Mishaps(self.world, plan.mishaps, self._has_begun)
        self._swaps = Swaps(self.world, self._oracle, plan.swaps, self._append)
        self._job_run_number = 0
        self._submission_id = ""
        """Id of the last submission."""
        self._retention = Retention(self.world, scheduler.random_for("retention"))
        self._job_runs_left = list(plan.job_runs)
        self._tries = self._job_run_starts = 0
        self._restoring_submission: str | None = None
        """Id of the last submission if it does not restore the latest checkpoint, else None."""
        self._losses_reported = 0
        self._written = 0
        self._done = False
        self._quiet_since_s: float | None = None
        self._stuck: str | None = None
        for topic, partitions in plan.partitions.items():
            self.world.kafka.create_topic(topic, partitions)
            self.world.other_kafka.create_topic(topic, partitions)
        self._sequences: dict[PartitionLog, int] = {}

    # --- the run --------------------------------------------------------------------------------

    def run_to_end(self) -> None:
        """Run until the verdict is known."""
        scheduler, fault_rates = self._scheduler, self.plan.fault_rates
        scheduler.story.record(0.0, "plan", "%s", self._describe_plan())
        for each in self.plan.inputs:
            if each.at_s:
                scheduler.call_later(each.at_s, partial(self._write, each))
            else:
                self._write(each)
        if self.plan.retention:
            self._retention.begin()
        self._start_job_run()
        self._fault_injector.begin()
        self._mishaps.begin()
        blackout_s = self.plan.blackout_s
        if blackout_s:
            when_s = scheduler.random_for("blackout").uniform(0.1, 0.6) * fault_rates.fault_period_s
            scheduler.call_later(when_s, partial(self._fault_injector.black_out, blackout_s))
        scheduler.call_later(fault_rates.fault_period_s, self._end_faults)
        scheduler.call_later(CHECK_INTERVAL_S, self._check_periodically)
        scheduler.between = self._fault_injector.between
        until_s = fault_rates.fault_period_s + blackout_s + QUIET_S
        scheduler.run(until_s, self._is_over)
        if not self._is_over():
            self._stuck = (
                f"{QUIET_S:g} s after the last fault the job has not come to its end: "
                f"{self._oracle.missing} results are missing, the newest attempt is "
                f"{self._checker.journal.attempt}"
            )
        elif self._done and self._checker.found is None and not scheduler.bugs:
            self._judge_the_end()

    def outcome(self) -> Outcome:
        """Return the verdict and some figures."""
        kinds = Counter(map(type, self._checker.journal.entries.values()))
        return Outcome(
            seed=self._seed,
            violation=self._violation(),
            story=self._scheduler.story,
            plan=self.plan,
            virtual_s=self._scheduler.now,
            turns=self._scheduler.turns,
            kills=self._fault_injector.kills,
            freezes=self._fault_injector.freezes,
            attempts=kinds[Claim],
            publications=kinds[Publication],
            waves=self._checker.waves,
            rollbacks=kinds[RolledBack],
            losses=kinds[Lost],
            visible=self._oracle.visible,
            fired=0 if self._oracle.timed is None else self._oracle.timed.fired,
            expired=self._retention.expired,
        )

    def _violation(self) -> str | None:
        if self._checker.found is not None:
            return str(self._checker.found)
        for thread, error in self._scheduler.bugs:
            told = "".join(traceback.format_exception(error))
            return f"{thread.process.name}, thread {thread.name}: {told}"
        return self._stuck

    def _is_over(self) -> bool:
        return self._done or self._checker.found is not None or bool(self._scheduler.bugs)

    def _judge_the_end(self) -> None:
        self.world.kafka.run_due()
        self._checker.check_at_least_once_sinks()
        try:
            ends = self.plan.job_runs[-1].ends
            self._oracle.complete(
                fires=ends == "finished" or self._drains(self.plan.job_runs[-1]),
                ended_at=self._checker.offsets() if ends == "drain" else None,
            )
        except Violation as violation:
            self._checker.record_violation(str(violation))
        if self._drains(self.plan.job_runs[-1]):
            self._checker.check_no_window_is_stored()
        self._checker.check_nothing_open()

    def _end_faults(self) -> None:
        """End all faults, after the end of a blackout that has begun."""
        left_s = self._fault_injector.blackout_ends_s - self._scheduler.now
        if left_s > 0:
            self._scheduler.call_later(left_s, self._end_faults)
            return
        self._scheduler.story.record(self._scheduler.now, "world", "all faults are over")
        self._fault_injector.stop()
        self._mishaps.stop()
        self._quiet_since_s = self._scheduler.now

    def _check_periodically(self) -> None:
        self.world.kafka.run_due()
        self._checker.check_for_stalls(quiet_since_s=self._quiet_since_s)
        self._scheduler.call_later(CHECK_INTERVAL_S, self._check_periodically)

    def _describe_plan(self) -> str:
        plan = self.plan
        job_runs = ", ".join(
            f"{each.ends} at p={each.parallelism}"
            + f" in waves of {each.wave_offsets}" * (each.wave_offsets is not None)
            + f" from {each.restore_back} back" * (each.restore_back is not None)
            for each in plan.job_runs
        )
        return (
            f"{plan.shape.pipeline.__name__}, at least once {sorted(plan.shape.plain)}; "
            f"{job_runs}; {len(plan.inputs)} records; "
            f"partitions {plan.partitions}; {plan.fault_rates}; {plan.conditions}; {plan.load}; "
            f"{'retention; ' if plan.retention else ''}"
            f"{'a session cluster; ' if plan.session_cluster else ''}"
            f"{'user code cannot open; ' if plan.failing_open else ''}"
            f"{'user code crashes; ' if plan.crashing else ''}"
            f"{''.join(f'{each.kind}; ' for each in (*plan.mishaps, *plan.swaps) if each)}"
            f"{f'{plan.waves}; ' if plan.waves else ''}"
            f"{f'{plan.event_time}; ' if plan.event_time else ''}"
            f"{plan.settings}"
        )

    # --- input ----------------------------------------------------------------------------------

    def _write(self, each: Input) -> None:
        """Append a record, or a transaction with one record that ends at once."""
        topic_partition = TopicPartition(each.topic, each.partition)
        if each.committed and not self.plan.retention:
            self._append(topic_partition, each.event)
        else:
            log = self.world.kafka.log(topic_partition)
            producer, epoch, at = INPUT_PRODUCER + 1, self._written, log.end
            log.append(producer, epoch, 0, [self._record(each.event)], is_open=lambda: True)
            log.mark(producer, epoch, 0, commit=each.committed)
            if each.committed:
                self._oracle.expect(topic_partition, each.event, at)
        self._written += 1

    def _append(self, topic_partition: TopicPartition, event: Event) -> None:
        """Append a record without a transaction."""
        log = self.world.kafka.log(topic_partition)
        sequence, at = self._sequences.get(log, 0), log.end
        log.append(INPUT_PRODUCER, 0, sequence, [self._record(event)], is_open=None)
        self._sequences[log] = sequence + 1
        self._oracle.expect(topic_partition, event, at)

    def _record(self, event: Event) -> Record:
        """Return the record of an event. Only a pipeline with event time gets the time of Kafka."""
        at_ms = 0 if self.plan.event_time is None else self.world.kafka.now_ms()
        return Record(msgspec.json.encode(event), event.key.encode(), (), at_ms)

    # --- the user -------------------------------------------------------------------------------

    def _start_job_run(self) -> None:
        """Start `tidegate run` once more, for the current job run."""
        job_run = self._job_runs_left[0]
        self._mishaps.correct()
        self._tries += 1
        self._job_run_starts += 1
        if self._job_run_starts == 1:
            self._swaps.before(self._job_run_number)
        self._checker.accepting = self._losses_reported >= LOSS_REPORTS_MIN
        process = self._scheduler.process(f"run-{self._tries}")
        user = self._user(job_run, process)
        if job_run.ends == "bounded":
            self.begin_drain(job_run)
        process.on_exit.append(lambda _status: self._job_run_ended(job_run, user))
        process.run_main(user.main)
        if job_run.ends == "crash":
            when_s = job_run.ends_at_share * max(
                self.plan.fault_rates.fault_period_s - self._scheduler.now, 1.0
            )
            self._scheduler.call_later(when_s, user.crash)

    def _user(self, job_run: JobRun, process: SimProcess) -> _User | BackfillUser:
        if job_run.wave_offsets is None or self.plan.waves is None:
            return _User(self, job_run, process, f"c{self._tries}")
        config = self.config(job_run)
        return BackfillUser(
            self.world,
            process,
            self.submission(job_run, config, f"c{self._tries}"),
            config,
            job_run,
            self.plan,
        )

    def _job_run_ended(self, job_run: JobRun, user: _User | BackfillUser) -> None:
        report = user.report
        self._scheduler.story.record(
            self._scheduler.now, "world", "life %s: %s", job_run.ends, report and report.state
        )
        if report is not None:
            self._ended(report)
        if user.over:
            del self._job_runs_left[0]
            self._job_run_starts = 0
            self._job_run_number += 1
        if not self._job_runs_left:
            self._done = True
            return
        self._scheduler.call_later(RESTART_DELAY_S, self._start_job_run)

    def _ended(self, report: JobReport) -> None:
        """Check the report of an ended job.

        A job may fail only if a loss is stated and not accepted, or because of a swap. A stop may
        end it if the storage or brokers are away.
        """
        error = report.error
        if error is not None and error.kind == kind_of(StopTimedOutError):
            self._checker.stop_timed_out(quiet_since_s=self._quiet_since_s)
            return  # the user runs the job again, and that run settles what is open
        self._checker.ended(self._submission_id, report.state)
        if self._swaps.refused(report):
            return
        if self._swaps.active:
            self._checker.record_violation(
                f"the job is {report.state.lower()}, and must be refused: {self._swaps.active.kind}"
            )
        lost = self._checker.journal.lost is not None
        if (
            report.state is JobState.FAILED
            and lost
            and error
            and error.kind == kind_of(DataLossError)
        ):
            self._losses_reported += 1
        elif report.state in {JobState.FAILED, JobState.FENCED}:  # no other cluster has the name
            self._checker.record_violation(
                f"the job is {report.state.lower()}: {error and f'{error.kind}: {error.message}'}"
            )
        elif lost and report.state is JobState.FINISHED:
            self._checker.record_violation("the job has finished after a loss that is not accepted")
        if not lost:
            self._losses_reported = 0

    def may_end(self, job_run: JobRun) -> bool:
        """Return whether the time to stop a job run has come."""
        self._checker.check_at_least_once_sinks()
        if self._swaps.active:
            return False
        if self._written < len(self.plan.inputs):
            share = self._scheduler.now / self.plan.fault_rates.fault_period_s
        else:
            due = self._oracle.visible + self._oracle.missing
            share = self._oracle.visible / due if due else 1.0
        match job_run.ends:
            case "finished":
                if self._restoring_submission not in {None, self._checker.journal.submission}:
                    return False  # results that must appear again are counted from the claim on
                return self._written == len(self.plan.inputs) and not self._oracle.missing
            case "stop" | "cancel" | "drain":
                return share >= job_run.ends_at_share
            case _:
                return False

    def submission(self, job_run: JobRun, config: Config, number: str) -> Submission:
        """Return the submission of the user."""
        graph, id_ = build(self.plan.shape.pipeline, {}), f"submission-{number}"
        restore = self._restore(job_run)
        self._restoring_submission = None if restore == "latest" else id_
        self._submission_id = id_
        return Submission(
            job=JobName(graph.name),
            reference=self.plan.shape.reference,
            working_folder=str(self._folder),
            params={},
            parallelism=job_run.parallelism,
            max_parallelism=config.job.max_parallelism,
            settings=config.to_dict(),
            fingerprint=graph.fingerprint(),
            code_digest=CODE_DIGEST,
            python_version=platform.python_version(),
            tidegate_version=TIDEGATE,
            bounded=job_run.ends == "bounded" or job_run.wave_offsets is not None,
            drain=job_run.ends == "bounded" and self._drains(job_run),
            restore=restore,
            accept_data_loss=self._checker.accepting,
            take_over=False,
            restore_to_other_cluster=self._swaps.consents,
            id=id_,
        )

    def begin_drain(self, job_run: JobRun) -> None:
        """Note that a job run may end its input from now on, if it drains."""
        if self._oracle.timed is not None and self._drains(job_run):
            self._oracle.timed.begin_drain()

    def _drains(self, job_run: JobRun) -> bool:
        """Return whether all event timers fire at the end of a job run."""
        drains = self.plan.event_time is not None and self.plan.event_time.drains
        return drains and job_run is self.plan.job_runs[-1]

    def _has_begun(self) -> bool:
        """Return whether the job of the current submission has claimed."""
        return bool(self._submission_id) and self._checker.journal.submission == self._submission_id

    def _restore(self, job_run: JobRun) -> str:
        """Return the restore option of the user.

        A job run that is started again after a failure continues from the last checkpoint.
        """
        restorable = self._checker.journal.restorable(
            self.plan.settings["checkpoint"]["num_retained"]
        )
        if job_run.restore_back is None or not restorable or self._job_run_starts > 1:
            return self._swaps.restore
        return restorable[min(job_run.restore_back, len(restorable) - 1)]

    def config(self, job_run: JobRun) -> Config:
        """Return the configuration of a job run."""
        settings: dict[str, Any] = {key: dict(value) for key, value in self.plan.settings.items()}
        settings["job"]["parallelism"] = job_run.parallelism
        if self._swaps.bootstrap:
            settings["kafka"] = {"bootstrap_servers": self._swaps.bootstrap}
        settings["taskmanager"] = {"slots": job_run.slots}
        settings["cluster"]["task_managers"] = job_run.task_managers
        return checked(Config, settings)


class _User:
    """The user process: it starts a cluster, submits the job, waits for it and stops it.

    It is a `tidegate run`, which supervises a local JobManager, or the operator and client of a
    session cluster.
    """

    def __init__(self, run: Run, job_run: JobRun, process: SimProcess, cluster: str) -> None:
        self._run, self._job_run, self._process, self._cluster_name = run, job_run, process, cluster
        self.report: JobReport | None = None
        self.crashed = False
        self._told: int | None = None
        """Leader epoch of the JobManager that got the stop request."""
        self._submitted = self._refused = False

    @property
    def over(self) -> bool:
        """Whether the job run has ended and is not started again."""
        ended = self.report is not None and self.report.state in {
            JobState.FINISHED,
            JobState.CANCELED,
        }
        return self.crashed or ended

    def crash(self) -> None:
        """Kill all processes of this job run."""
        if self._process.alive:
            self.crashed = True
            self._process.kill()

    def main(self) -> int:
        """Submit the job and wait for it, as `cli/run/local_run.py` does."""
        run, config = self._run, self._run.config(self._job_run)
        submission = run.submission(self._job_run, config, self._cluster_name)
        with contextlib.ExitStack() as ending:
            try:
                client = self._client(config, ending)
                client.submit(submission)
                self._submitted = True
                self.report = client.wait(
                    submission.job, lambda report: self._reported(report, client)
                )
            except (ExternalError, RefusedError) as error:
                self._process.scheduler.record_event("the client stops: %s", error)
                if self._submitted and isinstance(error, RefusedError):
                    run.world.watch.record_violation(f"a job that was accepted is gone: {error}")
                return 1
        return 0

    def _client(self, config: Config, ending: contextlib.ExitStack) -> Client:
        """Start a cluster and return its client. The cluster ends with this process, or before."""
        world, session_cluster = self._run.world, self._run.plan.session_cluster
        drivers = world.drivers(self._process)
        storage = "" if session_cluster else drivers.blob_store(STORAGE).identify()
        processes = world.processes(
            self._process,
            self._cluster_name,
            config,
            session_cluster=session_cluster,
            storage=storage,
        )
        if session_cluster:
            parts = drivers.rpc, drivers.clock, drivers.threads
            return SessionCluster(processes, *parts, config).client()
        local = LocalCluster(processes, drivers.rpc, drivers.clock, drivers.threads)
        ending.callback(local.close)
        return local.client()

    def _reported(self, report: JobReport, client: Client) -> None:
        if self._refused and report.state not in ENDED:
            self._run.world.watch.record_violation("a stop was refused, and the job continues")
        told = self._told == report.epoch
        if told or report.state in ENDED or not self._run.may_end(self._job_run):
            return
        try:
            ends = self._job_run.ends
            if ends == "drain":
                self._run.begin_drain(self._job_run)
            client.stop(report.job, final_checkpoint=ends != "cancel", drain=ends == "drain")
            self._told = report.epoch
        except RefusedError:
            self._refused = True  # the job has ended meanwhile
        except RpcError as error:
            self._process.scheduler.record_event("the stop could not be delivered: %s", error)
