"""Kills brokers under a running job: each one in turn, coordinators, leaders, or all of them.

There are three brokers, with three replicas and two in sync to write. Every attacked node is
started again before the next attack. In two stories the output does not simply continue:

- All brokers are away for longer than the delivery timeout. The job restarts, and its output is
  exact.
- All brokers are away for longer than the transaction timeout, while a publication is not ended.
  Output is then lost. The job must report the loss, and stay failed when it is started again. It
  may continue only after the operator accepts the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from integration.faults.kill_matrix.cluster import NODES, Brokers
from integration.faults.kill_matrix.fault_sequences import PIPELINES, Attack, at_once, told
from integration.faults.kill_matrix.live import RECOVERY_S_MAX, LiveJob
from integration.faults.kill_matrix.proxy import FLOWING, Network
from integration.faults.kill_matrix.scenarios import EXACT, VERSIONS, Result, Stage
from integration.faults.kill_points.kill_points import Trap
from integration.faults.kill_points.killed_runs import PARTITIONS
from tidegate.drivers.kafka.transactions import KafkaTransactionAdmin
from tidegate.ports.kafka import TransactionState

OPTIONS: Final = ("--task-managers", "2", "--slots", "1")
SHORT: Final = {
    "checkpoint.interval": "2 s",
    "checkpoint.timeout": "4 s",
    "checkpoint.tolerable_failed_checkpoints": "0",
    "checkpoint.tolerated_outage": "4 s",
}
TRANSACTION_TIMEOUT_S: Final = 12.0
"""The transaction timeout that follows from SHORT, in seconds. It is two checkpoint timeouts plus
the tolerated outage. The delivery timeout of records in a transaction is the same.
"""
OUTAGE_S: Final = TRANSACTION_TIMEOUT_S + 3.0
LONG_OUTAGE_S: Final = 45.0
"""Seconds after which a recovery has asked Kafka without success for 30 s, and has reported
that.
"""
ABORTED_S_MAX: Final = 60.0

IN_TURN: Final = tuple(range(NODES))
WORDS: Final = {
    "broker": "kill -9 and restart broker",
    "coordinator": "kill -9 the coordinator of the job's open transactions, time",
    "leader": "kill -9 the leader of the sink's partition",
    "rolling": "rolling restart, broker",
}


def brokers_of(stage: Stage, version: str, nodes: int = NODES) -> Brokers:
    """Return the brokers of this run. All of them are up, and the network in front of them has no
    faults.
    """

    def start(folder: Path, stack: ExitStack) -> Brokers:
        network = stack.enter_context(Network())
        return stack.enter_context(Brokers(version, folder, network, nodes=nodes))

    brokers = stage.shared(f"{nodes} brokers {version}", start)
    for link in brokers.links.values():
        link.set(FLOWING)
    dead = [node for node, alive in enumerate(brokers.kafka.alive) if not alive]
    if dead:  # nodes that a failed story has left dead
        brokers.start(*dead)
    return brokers


@dataclass(frozen=True, slots=True)
class OneByOne:
    """One broker at a time is away. The job does not restart because of it, or it recovers from the
    restart.

    `kinds` has some of: broker, coordinator, leader, rolling.
    """

    version: str
    pipeline: str
    kinds: tuple[str, ...]

    @property
    def prefix(self) -> str:
        return f"brokers/{self.version}/{self.pipeline.replace(' ', '-')}"

    @property
    def cells(self) -> Sequence[str]:
        return [
            f"{self.prefix}/{kind}-{number}" for kind in self.kinds for number in _numbers(kind)
        ]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Run one job, and make one attack after the other."""
        brokers = brokers_of(stage, self.version)
        with LiveJob(
            brokers.bootstrap,
            stage.new_folder(f"brokers {self.pipeline}"),
            PIPELINES[self.pipeline],
            seed=stage.seed,
            environment={},
            options=OPTIONS,
        ) as live:
            attacks = [a for kind in self.kinds for a in self._attacks(kind, brokers, live)]
            chosen = [attack for attack in attacks if attack.cell in cells]
            yield from told(live, chosen, version=self.version, pipeline=self.pipeline, stage=stage)

    def _attacks(self, kind: str, brokers: Brokers, live: LiveJob) -> Iterator[Attack]:
        for number in _numbers(kind):
            attacked: list[int] = []
            victim = partial(_victim, kind, number, brokers, live)
            attack = brokers.stop if kind == "rolling" else brokers.kill
            yield Attack(
                cell=f"{self.prefix}/{kind}-{number}",
                name=f"{WORDS[kind]} {number + 1}",
                signal="SIGTERM" if kind == "rolling" else "SIGKILL",
                make=partial(_attack, victim, attack, attacked),
                after=partial(_start_again, brokers, attacked),
            )


def _numbers(kind: str) -> Sequence[int]:
    return range(PARTITIONS) if kind == "leader" else IN_TURN


def _victim(kind: str, number: int, brokers: Brokers, live: LiveJob) -> int:
    if kind == "coordinator":
        ids = sorted(live.run.until(live.job.open_transactions, "writing", RECOVERY_S_MAX))
        return brokers.coordinator(ids[number % len(ids)])
    if kind == "leader":
        (sink, *_) = live.watchers.values()
        return brokers.leader(sink.topic, number)
    return number


def _attack(victim: Callable[[], int], attack: Callable[[int], None], attacked: list[int]) -> float:
    node = victim()
    attacked.append(node)
    return at_once(partial(attack, node))


def _start_again(brokers: Brokers, attacked: list[int]) -> None:
    brokers.start(*attacked)


@dataclass(frozen=True, slots=True)
class AllAway:
    """All brokers are killed while no published transaction waits to be ended."""

    version: str
    pipeline: str

    @property
    def cells(self) -> Sequence[str]:
        return [f"brokers/{self.version}/{self.pipeline.replace(' ', '-')}/all-away"]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Kill all brokers, wait, start them again, and let the job recover."""
        brokers = brokers_of(stage, self.version)
        with LiveJob(
            brokers.bootstrap,
            stage.new_folder(f"all away {self.pipeline}"),
            PIPELINES[self.pipeline],
            seed=stage.seed,
            environment={},
            options=OPTIONS,
            config=SHORT,
        ) as live:
            attack = Attack(
                cell=cells[0],
                name=f"kill -9 all brokers for {LONG_OUTAGE_S:.0f} s, longer than the delivery"
                f" timeout of {TRANSACTION_TIMEOUT_S:.0f} s",
                signal="SIGKILL",
                make=partial(_all_away, brokers, live),
                faults=NODES,
                check=lambda: _told_clearly(live),
            )
            yield from told(
                live, [attack], version=self.version, pipeline=self.pipeline, stage=stage
            )


def _all_away(brokers: Brokers, live: LiveJob) -> float:
    before = live.run.publications()
    live.run.until(
        lambda: live.run.publications() > before and live.job.journal()[-1]["kind"] == "settled",
        "settled",
        RECOVERY_S_MAX,
    )
    brokers.kill(*range(NODES))
    time.sleep(LONG_OUTAGE_S)
    brokers.start(*range(NODES))
    return time.time()


def _told_clearly(live: LiveJob) -> str:
    """Return a problem unless the job has named the brokers in a sentence, without a traceback.

    The user must see this, because only the user can repair an unreachable broker.
    """
    said = live.told()
    if "Traceback" in said:
        return "the job shows a traceback"
    return "" if live.job.bootstrap in said else "the job does not say which brokers are away"


@dataclass(frozen=True, slots=True)
class Loss:
    """A publication is partly committed. Then all processes are away until the rest is aborted."""

    version: str
    pipeline: str
    nodes: int = NODES

    @property
    def cells(self) -> Sequence[str]:
        return [f"brokers/{self.version}/{self.pipeline.replace(' ', '-')}/loss"]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Lose output, start the job twice without success, accept the loss, and continue."""
        brokers = brokers_of(stage, self.version, self.nodes)
        # The JobMaster is stopped after the first EndTxn of its third publication, which lists
        # transactions of several slots. Then all processes are killed.
        traps = [
            Trap("jobmaster.published", 3, holds=True),
            Trap("jobmaster.ended", stops=True),
        ]
        with LiveJob(
            brokers.bootstrap,
            stage.new_folder(f"loss {self.pipeline}"),
            PIPELINES[self.pipeline],
            seed=stage.seed,
            environment={},
            options=OPTIONS,
            config={**SHORT, "checkpoint.interval": "1 s"},
            traps=traps,
            await_output=False,
        ) as live:
            trapped = live.run.plan.snapped
            live.run.until(lambda: len(trapped()) == 1, "published", RECOVERY_S_MAX)
            live.run.plan.release(0)
            live.run.until(lambda: len(trapped()) == len(traps), "ended", RECOVERY_S_MAX)
            live.run.process.kill()
            live.run.clean_up()
            brokers.kill(*range(self.nodes))
            time.sleep(OUTAGE_S)
            brokers.start(*range(self.nodes))
            named = live.job.journal()[_last_publication(live)]["transactions"]
            wrong = _await_aborted(live, named)
            wrong = wrong or _fails_loudly(live, "first") or _fails_loudly(live, "second")
            if not wrong:
                accepted_s = time.time()
                live.start_again("--accept-data-loss")
                live.attacked(accepted_s * 1000)
                wrong = _only_the_lost_is_missing(live)
        yield Result(
            cell=cells[0],
            name=f"all processes are away for {OUTAGE_S:.0f} s, longer than the transaction"
            f" timeout, after one of {len(named)} published transactions was ended",
            version=self.version,
            pipeline=self.pipeline,
            signal="SIGKILL",
            seed=stage.seed,
            kills=self.nodes + 1,
            recovery_s=tuple(round(each, 3) for each in live.recoveries_s),
            verdict=wrong or EXACT,
            date=stage.date,
            note="the job failed twice; after --accept-data-loss, only the reported output is "
            "missing",
        )


def _last_publication(live: LiveJob) -> int:
    entries = live.job.journal()
    return max(n for n, entry in enumerate(entries) if entry["kind"] == "publication")


def _await_aborted(live: LiveJob, named: Sequence[dict[str, Any]]) -> str:
    """Wait until the brokers have ended all of these transactions. Return a problem unless some
    were committed and others aborted, because the test would then prove nothing.
    """
    log = KafkaTransactionAdmin({"bootstrap.servers": live.job.bootstrap})
    try:
        end_s = time.monotonic() + ABORTED_S_MAX
        while True:
            ids = [txn["transactional_id"] for txn in named]
            facts = {id_: log.describe(id_) for id_ in ids}
            states = {id_: fact and fact.state for id_, fact in facts.items()}
            under_way = {
                TransactionState.ONGOING,
                TransactionState.PREPARE_ABORT,
                TransactionState.PREPARE_COMMIT,
            }
            if not under_way & set(states.values()):
                break
            if time.monotonic() > end_s:
                return f"the brokers did not abort in time: {states}"
            time.sleep(0.2)
    finally:
        log.close()
    ends = {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
    return "" if set(states.values()) == ends else f"some must be committed, others not: {states}"


def _fails_loudly(live: LiveJob, which: str) -> str:
    """Start the job without accepting the loss. Return a problem unless it ends and says what was
    lost.
    """
    with live.started(traps=()) as run:
        code = run.wait(RECOVERY_S_MAX)
        said = live.told(run)
    if code == 0 or "has lost output" not in said or "--accept-data-loss" not in said:
        return f"the {which} start ended with {code} and said {said[-300:]!r}"
    return "the job shows a traceback" if "Traceback" in said else ""


def _only_the_lost_is_missing(live: LiveJob) -> str:
    """Return a problem unless only the accepted loss is missing. No output may be there twice or
    out of order, and no other output may be lost.
    """
    said = live.finish(lossy=True)
    verdict = live.job.compare()
    holed, wrong = live.holes()
    if wrong or not holed or verdict.twice or not verdict.missing:
        return f"after the loss was accepted: {wrong or said}"
    if live.job.open_transactions() or live.vanished_records():
        return f"after the loss was accepted: {said}"
    return ""


def scenarios() -> Iterator[OneByOne | AllAway | Loss]:
    """Yield all scenarios of this module."""
    for version in VERSIONS:
        yield OneByOne(version, "keyed", ("broker", "coordinator"))
        yield OneByOne(version, "two sinks", ("leader",))
        yield OneByOne(version, "stateless", ("rolling",))
        yield AllAway(version, "keyed")
        yield AllAway(version, "two sinks")
        yield Loss(version, "two sinks")
    yield Loss("4.3.0", "stateless")
