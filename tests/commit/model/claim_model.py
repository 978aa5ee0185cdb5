"""The model of first claims: the claim id shows each newer attempt that a list of ids would show.

A journal that was put back from a backup lacks its newest claims. A first claim must then be
refused if Kafka has ids of an attempt that the journal lacks. A list of all ids shows them. The
claim id is the faster way. Every claim initialises it, and contains the producer id and the epoch
that it then has. If Kafka still has those of the newest claim, the list is left out. This holds
only for claims that prove. A claim proves if no other process has initialised the id since the
claim before, and if that claim proves too or the process has listed all ids.

These events may happen, in any order:

- Processes claim at the same time, and each claims again for its next wave.
- A process stops at any step, for ever or for a while.
- An attempt opens ids at any time after its claim.
- The claim id expires, and the ids of an attempt expire.
- An InitProducerId arrives once more.
- The journal is put back to an older copy.
- Kafka's address leads to another cluster, which has the same producer ids.

Checked at every claim: the claim is refused if a list, instead of the proof, would have shown an
attempt that the journal lacks and that may have published. An attempt may have published if it
opened ids while its claim was in the journal. Otherwise its publications find another journal. A
claim is refused only if the journal was put back.

Not modelled: publications and fences, which `model.py` has; the operator's consent to a lost tail;
creates with an unknown outcome. A create that lands late is a step that is taken late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tests.commit.model.search import Violation

# What a process does next.
START: Final = "start"
PROVE: Final = "prove"
LIST: Final = "list"
READ_AGAIN: Final = "read again"
INIT: Final = "init"
DESCRIBE: Final = "describe"
CREATE: Final = "create"
RUN: Final = "run"
DEAD: Final = "dead"

Producer = tuple[int, int, int]
"""Cluster, producer id and epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBounds:
    """The limits of the model, and the rule that is broken."""

    processes: int = 3
    """Processes, of which the first has made the first claim."""
    claims: int = 3
    """Entries of the journal."""
    expirations: int = 0
    duplicates: int = 0
    """InitProducerIds that arrive once more."""
    clusters: int = 1
    broken: str = ""
    """The rule that is broken, by its name in `cases.py`."""


class Claim(NamedTuple):
    """A journal entry. Its number is its attempt."""

    process: int
    producer: Producer | None
    proves: bool


Journal = tuple[Claim, ...]


class Cluster(NamedTuple):
    """A Kafka cluster."""

    producer_ids: int = 0
    claim_id: tuple[int, int] | None = None
    """Producer id and epoch; None if Kafka does not know the id."""
    ids: frozenset[int] = frozenset()
    """Attempts of which Kafka knows ids."""
    published: frozenset[int] = frozenset()
    """Those of them that may have published."""
    marks: frozenset[int] = frozenset()
    """Attempts that have an id of their own for the claim (a broken variant)."""

    def initialised(self) -> Cluster:
        """After an InitProducerId of the claim id."""
        if self.claim_id is None:
            producer_id = self.producer_ids + 1
            return self._replace(producer_ids=producer_id, claim_id=(producer_id, 0))
        producer_id, epoch = self.claim_id
        return self._replace(claim_id=(producer_id, epoch + 1))


class Process(NamedTuple):
    """A process that claims."""

    does: str = START
    cluster: int = 0
    seen: Journal = ()
    known: int = 0
    """The newest attempt that its proof, or its list, allows."""
    listable: int = 0
    """The newest attempt that may have published and that a list would have shown then."""
    listed_after: Producer | None = None
    """The producer of the newest claim before the process lists."""
    before: Producer | None = None
    """The claim id as the process described it first."""
    producer: Producer | None = None
    proves: bool = False
    attempt: int = 0
    """Its newest claim."""


GONE: Final = Process(DEAD)


class ClaimState(NamedTuple):
    """A state of the whole model."""

    journal: Journal
    was_put_back: bool
    address: int
    """The cluster to which Kafka's address leads."""
    clusters: tuple[Cluster, ...]
    processes: tuple[Process, ...]
    expirations: int
    duplicates: int

    def with_process(self, number: int, process: Process) -> ClaimState:
        """With another process of this number."""
        processes = (*self.processes[:number], process, *self.processes[number + 1 :])
        return self._replace(processes=processes)

    def with_cluster(self, number: int, cluster: Cluster) -> ClaimState:
        """With another cluster of this number."""
        clusters = (*self.clusters[:number], cluster, *self.clusters[number + 1 :])
        return self._replace(clusters=clusters)


Step = tuple[str, ClaimState]


class ClaimModel:
    """First claims within bounds."""

    def __init__(self, bounds: ClaimBounds) -> None:
        self._bounds = bounds

    def initial(self) -> ClaimState:
        """The first process has claimed, and its attempt has opened ids."""
        bounds = self._bounds
        first, one = Claim(0, (0, 1, 0), proves=True), frozenset({1})
        runs = Process(RUN, producer=first.producer, attempt=1)
        kafka = Cluster(1, (1, 0), one, one, one)
        return ClaimState(
            journal=(first,),
            was_put_back=False,
            address=0,
            clusters=(kafka, *(Cluster(),) * (bounds.clusters - 1)),
            processes=(runs, *(Process(),) * (bounds.processes - 1)),
            expirations=bounds.expirations,
            duplicates=bounds.duplicates,
        )

    def steps(self, state: ClaimState) -> Iterator[Step]:
        """Every step of processes, of the brokers, and of the operator."""
        begun = sum(each.does != START for each in state.processes)
        for number, process in enumerate(state.processes[: begun + 1]):  # they are the same
            yield from self._of_process(state, number, process)
        yield from self._of_kafka(state)
        if not state.was_put_back:
            for length in range(1, len(state.journal)):
                label = f"the journal is put back to {length} of {len(state.journal)} claims"
                put_back = state._replace(journal=state.journal[:length], was_put_back=True)
                yield label, put_back
        for other in range(self._bounds.clusters):
            if other > state.address:
                yield "Kafka's address leads to another cluster", state._replace(address=other)

    def _of_kafka(self, state: ClaimState) -> Iterator[Step]:
        for number, cluster in enumerate(state.clusters):
            if state.duplicates and cluster.claim_id is not None:
                after = state._replace(duplicates=state.duplicates - 1)
                yield (
                    "an InitProducerId arrives once more",
                    after.with_cluster(number, cluster.initialised()),
                )
            if not state.expirations:
                continue
            after = state._replace(expirations=state.expirations - 1)
            if cluster.claim_id is not None:
                gone = cluster._replace(claim_id=None)
                yield "the claim id expires", after.with_cluster(number, gone)
            for attempt in cluster.ids:
                gone = cluster._replace(
                    ids=cluster.ids - {attempt}, published=cluster.published - {attempt}
                )
                yield f"the ids of attempt {attempt} expire", after.with_cluster(number, gone)
            for attempt in cluster.marks:
                gone = cluster._replace(marks=cluster.marks - {attempt})
                yield f"the mark of attempt {attempt} expires", after.with_cluster(number, gone)

    # --- a process ------------------------------------------------------------------------------

    def _of_process(self, state: ClaimState, number: int, process: Process) -> Iterator[Step]:
        match process.does:
            case "start":
                seen = Process(PROVE, state.address, state.journal)
                yield f"{number} reads the journal", state.with_process(number, seen)
            case "prove":
                yield self._prove(state, number, process)
            case "list":
                yield self._list(state, number, process)
            case "read again":
                yield self._decide(state, number, process._replace(seen=state.journal))
            case "init":
                cluster = state.clusters[process.cluster].initialised()
                after = state.with_cluster(process.cluster, cluster)
                described = process._replace(does=DESCRIBE)
                yield f"{number} initialises the claim id", after.with_process(number, described)
            case "describe":
                yield self._describe(state, number, process)
            case "create":
                yield self._create(state, number, process)
            case "run":
                yield from self._run(state, number, process)
            case _:
                return

    def _list(self, state: ClaimState, number: int, process: Process) -> Step:
        cluster = state.clusters[process.cluster]
        newest, published = max(cluster.ids, default=0), max(cluster.published, default=0)
        listed = process._replace(does=READ_AGAIN, known=newest, listable=published)
        return f"{number} lists all ids: {newest}", state.with_process(number, listed)

    def _describe(self, state: ClaimState, number: int, process: Process) -> Step:
        found = _producer(state, process)
        proves = self._proves(process, found)
        described = process._replace(does=CREATE, producer=found, proves=proves)
        return f"{number} describes the claim id: {found}", state.with_process(number, described)

    def _prove(self, state: ClaimState, number: int, process: Process) -> Step:
        newest = len(process.seen)
        listable = max(state.clusters[process.cluster].published, default=0)
        found = _producer(state, process)
        if self._bounds.broken == "compared with a description":
            process = process._replace(before=found)
        if not self._is_newest(state, process, found):
            process = process._replace(listed_after=process.seen[-1].producer)
            label = f"{number} cannot prove that attempt {newest} is the newest"
            return label, state.with_process(number, process._replace(does=LIST))
        proven = process._replace(known=newest, listable=listable)
        label, after = self._decide(state, number, proven)
        return f"{number} proves that attempt {newest} is the newest, and {label}", after

    def _is_newest(self, state: ClaimState, process: Process, found: Producer | None) -> bool:
        """Whether the claim id proves that no attempt is newer than the newest claim."""
        broken, cluster = self._bounds.broken, state.clusters[process.cluster]
        if broken == "a mark for each attempt":
            newest = len(process.seen)
            return newest in cluster.marks and newest == max(cluster.marks)
        _, producer, proves = process.seen[-1]
        if not proves:
            return False
        if found is None:
            return broken == "an expired claim id proves" and producer is not None
        if producer is not None and broken == "the producer id is not compared":
            return producer[2] == found[2]
        if producer is not None and broken == "the cluster is not compared":
            return producer[1:] == found[1:]
        return producer == found

    def _proves(self, process: Process, found: Producer | None) -> bool:
        """Whether the claim of a process that has just initialised the claim id proves."""
        before, broken = process.seen[-1], self._bounds.broken
        if broken == "other initialisations are not noticed":
            return True
        producer = process.before if broken == "compared with a description" else before.producer
        if producer is None or found != (*producer[:2], producer[2] + 1):
            return False
        return before.proves or before.producer == process.listed_after

    def _decide(self, state: ClaimState, number: int, process: Process) -> Step:
        """Refuse, or continue with the claim."""
        if process.known > len(process.seen):
            if not state.was_put_back:
                raise Violation(f"false alarm: {number} knows attempt {process.known}")
            return f"{number} is refused", state.with_process(number, GONE)
        forgets = self._bounds.broken == "a repeated try forgets the proof"
        goes_on = process._replace(does=INIT, known=0 if forgets else process.known)
        return f"{number} goes on", state.with_process(number, goes_on)

    def _create(self, state: ClaimState, number: int, process: Process) -> Step:
        length = len(process.seen)
        if state.journal[:length] != process.seen:  # it was put back: no entry follows its own
            return f"{number} does not find what it has read", state.with_process(number, GONE)
        if len(state.journal) > length:
            if process.attempt:  # another process has replaced this one
                return f"{number} is fenced", state.with_process(number, GONE)
            again = process._replace(does=READ_AGAIN)
            return f"{number} finds claim {length + 1} there", state.with_process(number, again)
        if not process.attempt and process.listable > length:
            raise Violation(
                f"a lost tail is not noticed: {number} claims attempt {length + 1}, and a list "
                f"would have shown attempt {process.listable}"
            )
        claim = Claim(number, process.producer, process.proves)
        after = state._replace(journal=(*state.journal, claim))
        ran = Process(RUN, process.cluster, attempt=length + 1, producer=process.producer)
        proof = "" if process.proves else ", which proves nothing"
        label = f"{number} claims attempt {length + 1} with {process.producer}{proof}"
        return label, after.with_process(number, ran)

    def _run(self, state: ClaimState, number: int, process: Process) -> Iterator[Step]:
        cluster, attempt = state.clusters[process.cluster], process.attempt
        opened = cluster._replace(ids=cluster.ids | {attempt}, marks=cluster.marks | {attempt})
        own = state.journal[attempt - 1 : attempt]
        if [each[:2] for each in own] == [(number, process.producer)]:
            opened = opened._replace(published=cluster.published | {attempt})
        if opened != cluster:
            label = f"attempt {attempt} opens ids"
            yield label, state.with_cluster(process.cluster, opened)
        newest = state.journal[-1].process if len(state.journal) >= attempt else -1
        if newest == number and len(state.journal) < self._bounds.claims:
            skips = self._bounds.broken == "waves do not initialise"
            does = CREATE if skips else INIT
            before = state.journal[-1].producer if process.before else None
            wave = process._replace(does=does, seen=state.journal, before=before)
            yield f"{number} begins its next wave", state.with_process(number, wave)

    # --- what holds -----------------------------------------------------------------------------

    def check(self, state: ClaimState) -> None:
        """Nothing: `steps` checks each claim when it is made."""

    def check_end(self, state: ClaimState) -> None:
        """Nothing: a process may stop at any step."""


def _producer(state: ClaimState, process: Process) -> Producer | None:
    """The answer to a description of the claim id; None if Kafka does not know it."""
    claim_id = state.clusters[process.cluster].claim_id
    return None if claim_id is None else (process.cluster, *claim_id)
