"""Makes network faults between any two roles of a cluster, and between the roles and Kafka.

All connections from one role to another go through proxies (`switchboard`, `cluster`). The
connections from one role to another are called a way. Each way has all faults, one after the other,
while the job runs. It is cut, stalled for less and for more than the heartbeat timeout, muted,
slowed down, and made half-open. A way to Kafka fails to all brokers together, and then one of three
brokers is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from integration.faults.kill_matrix.broker_faults import OPTIONS, brokers_of
from integration.faults.kill_matrix.cluster import Brokers
from integration.faults.kill_matrix.fault_sequences import (
    PIPELINES,
    Attack,
    at_once,
    kill_one,
    lasting,
    told,
)
from integration.faults.kill_matrix.live import LiveJob
from integration.faults.kill_matrix.proxy import (
    CUT,
    FLOWING,
    MUTE,
    STALLED,
    Network,
    ProxyState,
    slow,
)
from integration.faults.kill_matrix.scenarios import VERSIONS, Result, Stage
from integration.faults.kill_matrix.switchboard import ADDRESS, Link, Switchboard

SLOW: Final = slow(latency_s=0.1, bytes_per_s=50_000)
LASTING: Final[dict[str, tuple[ProxyState, float]]] = {
    "cut": (CUT, 6.0),
    "hiccup": (STALLED, 1.5),
    "stall": (STALLED, 6.0),
    "mute": (MUTE, 3.0),
    "slow": (SLOW, 5.0),
}
"""States of the network, with their duration in seconds. The heartbeat timeout is 4 s."""
HALF_OPEN: Final = "half-open"
FAULTS: Final = (*LASTING, HALF_OPEN)

WORDS: Final = {
    "cut": "connections are reset, and new ones are refused for 6 s",
    "hiccup": "all bytes are held back for 1.5 s",
    "stall": "all bytes are held back for 6 s, longer than the heartbeat timeout",
    "mute": "answers are lost for 3 s",
    "slow": "the latency is 0.1 s and the rate is 50 kB/s, for 5 s",
    "half-open": "connections are reset on one side only",
    "cut-of-one": "one broker of three is unreachable for 6 s",
}

WAYS: Final = (
    ("client", "jobmanager"),
    ("taskmanager", "jobmanager"),
    ("jobmanager", "taskmanager"),
    ("jobmaster", "jobmanager"),
    ("jobmanager", "jobmaster"),
    ("slot", "jobmaster"),
    ("jobmaster", "slot"),
    ("slot", "exchange"),
)

# Requests to a broker that does not answer time out after 30 and 60 s by default. Users who want
# shorter timeouts set these, and so does the story, which would otherwise only wait.
QUICK: Final = {
    "kafka.properties.socket.timeout.ms": "5000",
    "kafka.properties.socket.connection.setup.timeout.ms": "3000",
}


def attacks_on(
    link: Link, way: str, prefix: str, faults: Sequence[str], provoke: Callable[[], object] = bool
) -> Iterator[Attack]:
    """Yield the faults of one way.

    `provoke` is called during each fault. It causes traffic on the way.
    """

    def begin(state: ProxyState) -> None:
        link.set(state)
        provoke()

    def forget() -> None:
        link.forget()
        provoke()

    for fault in faults:
        if fault == HALF_OPEN:
            make = partial(at_once, forget)
        else:
            state, seconds = LASTING[fault]
            make = partial(lasting, partial(begin, state), partial(link.set, FLOWING), seconds)
        yield Attack(
            cell=f"{prefix}/{way.replace(' ', '-')}/{fault}",
            name=f"{way}: {WORDS[fault]}",
            signal=fault,
            make=make,
            check=partial(went, link),
        )


@dataclass(frozen=True, slots=True)
class BetweenProcesses:
    """One way between two roles of a cluster."""

    version: str
    pipeline: str
    dials: str
    answers: str

    @property
    def way(self) -> str:
        return f"{self.dials} to {self.answers}"

    @property
    def prefix(self) -> str:
        return f"network/{self.version}/{self.pipeline.replace(' ', '-')}"

    @property
    def cells(self) -> Sequence[str]:
        return [f"{self.prefix}/{self.way.replace(' ', '-')}/{fault}" for fault in FAULTS]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Run one job, and make all faults."""
        kafka = stage.broker(self.version)
        with Network() as network, Switchboard(network) as board:
            link = board.link(self.dials, self.answers)
            faults = [cell.rpartition("/")[2] for cell in cells]
            with LiveJob(
                kafka.bootstrap,
                stage.new_folder(f"{self.way} {self.pipeline}"),
                PIPELINES[self.pipeline],
                seed=stage.seed,
                environment={**environment(board)},
                options=OPTIONS,
            ) as live:
                # A JobManager calls JobMasters only about lost slots, and to stop them.
                seldom = (self.dials, self.answers) == ("jobmanager", "jobmaster")
                provoke = partial(kill_one, live, "slot") if seldom else bool
                attacks = list(attacks_on(link, self.way, self.prefix, faults, provoke))
                yield from told(
                    live, attacks, version=self.version, pipeline=self.pipeline, stage=stage
                )


@dataclass(frozen=True, slots=True)
class ToKafka:
    """The ways of slots and of the JobMaster to three brokers."""

    version: str
    pipeline: str

    @property
    def prefix(self) -> str:
        return f"network/{self.version}/{self.pipeline.replace(' ', '-')}"

    @property
    def cells(self) -> Sequence[str]:
        faults = (*FAULTS, "cut-of-one")
        return [
            f"{self.prefix}/{party}-to-kafka/{fault}"
            for party in ("slot", "jobmaster")
            for fault in faults
        ]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Run one job, and make all faults of both parties."""
        brokers = brokers_of(stage, self.version)
        with LiveJob(
            brokers.bootstrap,
            stage.new_folder(f"kafka {self.pipeline}"),
            PIPELINES[self.pipeline],
            seed=stage.seed,
            environment=brokers.environment,
            options=OPTIONS,
            config=QUICK,
        ) as live:
            attacks = [attack for party in brokers.links for attack in self._of(brokers, party)]
            chosen = [attack for attack in attacks if attack.cell in cells]
            yield from told(live, chosen, version=self.version, pipeline=self.pipeline, stage=stage)

    def _of(self, brokers: Brokers, party: str) -> Iterator[Attack]:
        link, way = brokers.links[party], f"{party} to kafka"
        yield from attacks_on(link, way, self.prefix, FAULTS)
        one = next(iter(link.proxies.values()))
        yield Attack(
            cell=f"{self.prefix}/{party}-to-kafka/cut-of-one",
            name=f"{way}: {WORDS['cut-of-one']}",
            signal="cut",
            make=partial(lasting, partial(one.set, CUT), partial(one.set, FLOWING), 6.0),
            check=partial(went, link),
        )


def environment(board: Switchboard) -> dict[str, str]:
    """Return the environment of processes whose connections the switchboard routes."""
    return {ADDRESS: board.address}


def went(link: Link) -> str:
    """Return a problem if no process uses this way, because a fault on it would prove nothing."""
    return "" if link.proxies else "no process has used this way, so the test proves nothing"


def scenarios() -> Iterator[BetweenProcesses | ToKafka]:
    """Yield all scenarios of this module."""
    for dials, answers in WAYS:
        yield BetweenProcesses("4.3.0", "keyed", dials, answers)
    for way in (("slot", "jobmaster"), ("jobmaster", "slot")):
        yield BetweenProcesses("4.3.0", "two sinks", *way)
    yield BetweenProcesses("3.9.1", "keyed", "slot", "exchange")
    for version in VERSIONS:
        yield ToKafka(version, "keyed")
    yield ToKafka("4.3.0", "two sinks")
    yield ToKafka("3.9.1", "stateless")
