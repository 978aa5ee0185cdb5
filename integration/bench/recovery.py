"""Measures how long readers wait for new output after kills of brokers, processes and whole runs.

There are three brokers, a steady feed, and a reader of committed records that does not know which
process is killed. A figure counts from the kill to the first visible record that was produced after
it. A hand-written transactional producer runs at the same time on the same brokers. Its figure is
the failover time of Kafka itself, and no job can be faster. The phases of a recovery come from the
log of the JobMaster, each with its seconds.

First, three brokers are killed one by one. Then a broker is killed together with a slot or the
JobMaster. Then each kind of process is killed while one broker is away. Then a slot is killed
several times in a row. At last, the command is killed with all its processes: first after each
output, then 0.5 to 3 seconds after each start.

    python -m integration.bench.recovery            prints the table
    python -m integration.bench --only recovery     puts it into docs/evidence/benchmarks.md as well
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.bench.data import PARTITIONS
from integration.bench.page import Table
from integration.bench.recovery_probes import GIVE_UP_S, Loop, Reader, phases
from integration.bench.steady_producer import SteadyProducer
from integration.faults.kill_matrix.cluster import NODES, Brokers
from integration.support.running import Report, TidegateRun, runs_with_checkpoint
from tidegate.drivers.kafka.jars import VERSIONS
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionState

COPY: Final = "integration.bench.pipelines:Passthrough"
JOB: Final = "bench-passthrough"
FEED_PER_S: Final = 200
SETTLE_S: Final = 3.0
LIVES_S: Final = (0.5, 3.0, 1.0, 2.5, 1.5, 2.0, 0.7, 3.0)
"""Seconds after the start at which each of the repeated kills of a run happens."""
STARTS: Final = 3
SLOT_KILLS: Final = 5
FAILOVER_GOAL: Final = "the brokers' own + 2 s"
RUN_GOAL: Final = "4 s"
PROCESSES: Final[dict[str, Callable[[Report], int]]] = {
    "slot": lambda report: report["slots"][0]["pid"],
    "TaskManager": lambda report: report["slots"][0]["task_manager_pid"],
    "JobMaster": lambda report: report["jobmaster_pid"],
    "JobManager": lambda report: report["jobmanager_pid"],
}

Row = list[str]


@dataclass(frozen=True, slots=True)
class Rig:
    """The brokers, and the folder that holds the folders of the runs."""

    brokers: Brokers
    folder: Path

    def home(self) -> Path:
        """Make a new folder for runs."""
        home = self.folder / f"run-{time.time_ns()}"
        home.mkdir()
        return home

    def run(self, home: Path, *options: str) -> TidegateRun:
        """Start the command."""
        config: dict[str, Any] = {
            "sources.clicks.topic": "feed",
            "sinks.copies.topic": "out",
            "checkpoint.interval": "1 s",
            "job.parallelism": "2",
        }
        bootstrap = self.brokers.bootstrap
        return TidegateRun(home, bootstrap, pipeline=COPY, options=options, config=config)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs during the kills, and the readers of its output and of the loop's."""

    run: TidegateRun
    home: Path
    reader: Reader
    probe: Reader

    def row(self, what: str, attack: Callable[[], object], goal: str = "") -> Row:
        """Attack, then wait for new output of the job and of the loop by hand."""
        own: list[float] = []
        killed_s = time.time()
        attack()
        waits = threading.Thread(target=lambda: own.append(self.probe.first_after(killed_s)))
        waits.start()
        took_s = self.reader.first_after(killed_s)
        waits.join()
        found = phases(_log(self.home), killed_s, took_s, ran=True)
        return said([what, f"{took_s:.1f} s", found, f"{own[0]:.1f} s", goal])

    def kill(self, process: str) -> None:
        """Kill a process of the job."""
        os.kill(self.pid(process), signal.SIGKILL)

    def pid(self, process: str) -> int:
        """Wait until a process of the job runs, and return its process id."""
        report = self.run.wait_for(
            process, lambda found: bool(found["slots"] and found["jobmaster_pid"]), GIVE_UP_S
        )
        return PROCESSES[process](report)

    def settled(self) -> Report:
        """Wait until the job runs normally again."""
        report = self.run.wait_for("a checkpoint", runs_with_checkpoint, GIVE_UP_S)
        self.reader.first_after(time.time())
        self.probe.first_after(time.time())
        time.sleep(SETTLE_S)
        return report


def measure_recovery() -> Table:
    """Measure a row for each kind of kill."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        Brokers(VERSIONS[0], Path(scratch, "kafka")) as brokers,
    ):
        rig = Rig(brokers, Path(scratch))
        _make_topics(brokers, "feed", "out", "probe")
        rows = [*_deaths(rig), *_killed_runs(rig)]
    return Table(
        "Recovery under pressure",
        ["what", "new output after", "phases, s", "a loop by hand", "goal"],
        rows,
        "A figure is the time from the kill (for `run`, from its start) to the first visible "
        "record that was produced after it. Three brokers run on the machine of the job, with "
        "replication 3, min.insync.replicas 2 and sessions of 3 s. The job has checkpoints every "
        f"second, {FEED_PER_S} records a second and two subtasks. The loop by hand is a "
        "transactional producer on the same brokers, so its figure is their own failover time. "
        "The times of phases are from the JobMaster's log.",
    )


def _deaths(rig: Rig) -> Iterator[Row]:
    """Kill brokers and processes of one job, which continues all the time."""
    brokers = rig.brokers
    with _watched(rig) as job:
        for victim in (_leader, _coordinator, _controller):
            job.settled()
            node = victim(brokers)
            what = f"kill -9 of the {ROLES[victim]}: it {_roles(brokers, node)}"
            yield job.row(what, partial(brokers.kill, node), FAILOVER_GOAL)
            brokers.start(node)
        for process in ("slot", "JobMaster"):
            job.settled()
            node, pid = brokers.leader("feed", 0), job.pid(process)

            def both(node: int = node, pid: int = pid) -> None:
                brokers.kill(node)
                os.kill(pid, signal.SIGKILL)

            what = f"kill -9 of a broker and of the {process} together"
            yield job.row(what, both, FAILOVER_GOAL)
            brokers.start(node)
        job.settled()
        brokers.kill(0)
        for process in PROCESSES:
            job.settled()
            what = f"one broker of three is away: kill -9 of the {process}"
            yield job.row(what, partial(job.kill, process))
        brokers.start(0)
        job.settled()
        for number in range(SLOT_KILLS):
            what = f"kill -9 of a slot, number {number + 1} in a row, a second after the output"
            yield job.row(what, partial(job.kill, "slot"))
            time.sleep(1.0)


def _killed_runs(rig: Rig) -> Iterator[Row]:
    """Kill the command with all processes that it has started, and start it again."""
    home = rig.home()
    reader = Reader(rig.brokers.bootstrap, "out")
    try:
        with SteadyProducer(rig.brokers.bootstrap, "feed", FEED_PER_S):
            _run_once(rig, home, reader, "--take-over")
            took = [_run_once(rig, home, reader) for _ in range(STARTS)]
            yield _of_runs("`run`, killed with its whole process group and started again", took)
            seen = sum(_killed_after(rig, home, reader, life_s) for life_s in LIVES_S)
            took = [_run_once(rig, home, reader)]
            lives = f"{min(LIVES_S):g} to {max(LIVES_S):g} s after its start"
            row = _of_runs(
                f"the same after {len(LIVES_S)} such kills, each {lives} ({seen} of these runs "
                "showed output)",
                took,
            )
            yield row
            rig.brokers.kill(0)
            took = [_run_once(rig, home, reader)]
            yield _of_runs("`run` started at once after a broker's death", took, "")
            took = [_run_once(rig, home, reader)]
            yield _of_runs("`run` started while one broker of three is away", took)
            rig.brokers.start(0)
    finally:
        reader.close()


def _of_runs(what: str, took: list[tuple[float, str]], goal: str = RUN_GOAL) -> Row:
    """Make a row of the median of several starts, with its phases."""
    median_s = statistics.median_low([took_s for took_s, _ in took])
    found = next(found for took_s, found in took if took_s == median_s)
    of = f" (median of {len(took)})" if len(took) > 1 else ""
    return said([what, f"{median_s:.1f} s{of}", found, "", goal])


def _run_once(rig: Rig, home: Path, reader: Reader, *options: str) -> tuple[float, str]:
    """Start the command, wait for its output, and kill everything that it has started."""
    began_s = time.time()
    with rig.run(home, *options) as run:
        took_s = reader.first_after(began_s)
        _kill_all(run)
    return took_s, phases(_log(home), began_s, took_s, ran=False)


def _killed_after(rig: Rig, home: Path, reader: Reader, life_s: float) -> bool:
    """Start the command and kill it after `life_s`. Return whether it showed output."""
    began_s = time.time()
    with rig.run(home) as run:
        time.sleep(life_s)
        _kill_all(run)
    return reader.newest_s > began_s


def _kill_all(run: TidegateRun) -> None:
    """Kill the process group of the command."""
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)


@contextmanager
def _watched(rig: Rig) -> Iterator[Job]:
    """Run a job with a feed and a reader, and the loop by hand at the same time."""
    bootstrap = rig.brokers.bootstrap
    reader, probe = Reader(bootstrap, "out"), Reader(bootstrap, "probe")
    loop = Loop(bootstrap, "probe")
    try:
        home = rig.home()
        with SteadyProducer(bootstrap, "feed", FEED_PER_S), rig.run(home) as run:
            yield Job(run, home, reader, probe)
    finally:
        loop.close()
        probe.close()
        reader.close()


def _roles(brokers: Brokers, node: int) -> str:
    """Describe what the broker does for the job."""
    leads = sum(brokers.leader("feed", number) == node for number in range(PARTITIONS))
    open_ = _open_transactions(brokers)
    coordinates = sum(brokers.coordinator(each) == node for each in open_)
    controls = ", and is the active controller" if _controller(brokers) == node else ""
    return (
        f"leads {leads} of {PARTITIONS} input partitions, coordinates {coordinates} of "
        f"{len(open_)} open transactions{controls}"
    )


def _leader(brokers: Brokers) -> int:
    return brokers.leader("feed", 0)


def _coordinator(brokers: Brokers) -> int:
    """Return the coordinator of the most open transactions of the job."""
    return statistics.mode(map(brokers.coordinator, _open_transactions(brokers)))


def _controller(brokers: Brokers) -> int:
    """Return the leader of the metadata quorum, by the newest state file of all nodes."""
    found = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in brokers.kafka.directory.glob("*/data/__cluster_metadata-0/quorum-state")
    ]
    newest = max(found, key=lambda state: (state["leaderEpoch"], state["leaderId"]))
    return int(newest["leaderId"]) - 1


ROLES: Final = {
    _leader: "leader of an input partition",
    _coordinator: "coordinator of open transactions",
    _controller: "active controller",
}


def _open_transactions(brokers: Brokers) -> list[TransactionalId]:
    """Return the open transactions of the job. Most of the time it has some."""
    log = KafkaTransactionAdmin({"bootstrap.servers": brokers.bootstrap})
    try:
        end_s = time.monotonic() + GIVE_UP_S
        while time.monotonic() < end_s:
            listed = log.list("tidegate.")
            found = [each for each, state in listed.items() if state is TransactionState.ONGOING]
            if found:
                return found
        raise TimeoutError("The job has no open transactions.")
    finally:
        log.close()


def _make_topics(brokers: Brokers, *names: str) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    made = admin.create_topics([NewTopic(name, PARTITIONS, NODES) for name in names])
    for future in made.values():
        future.result()


def _log(home: Path) -> Path:
    return home / ".tidegate" / "logs" / JOB / "jobmaster.log"


def said(row: Row) -> Row:
    """Print a row as soon as it is known, because all rows take minutes."""
    print("  ".join(each for each in row if each), flush=True)
    return row


if __name__ == "__main__":
    print(measure_recovery().plain())
