"""The protocol checker: it checks the rules of the commit protocol at every step of a run.

The checker observes from outside: which journal entries are created, which requests go to the
coordinators, when a source starts, and which transactions stay open. It builds the state of the
journal itself, and shares no decision with the code that it checks. It reads the decision on a
transaction from the coordinator, not from the answers that clients got. It keeps a violation in
`found`, which ends the run. It does not raise it, because the process under test would handle the
exception as one of its own errors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from tests.simulator.blobs import MemoryBlobs
from tests.simulator.journal_view import JournalPosition, JournalView, describe_entry
from tests.simulator.kafka.cluster import FakeKafka
from tests.simulator.kafka.coordinator import Decision
from tests.simulator.kafka.faults import Api, Call
from tests.simulator.kafka.log import PartitionLog
from tests.simulator.oracle import Oracle
from tests.simulator.result_groups import Violation
from tests.simulator.scheduler import Scheduler, SimProcess
from tests.simulator.stored_windows import stored_windows
from tidegate.checkpoint.manifest import Manifest, decode_manifest
from tidegate.commit.journal.entries import (
    AnyEntry,
    Claim,
    Closed,
    LossAccepted,
    Lost,
    Publication,
    RolledBack,
    Settled,
    decode_entry,
    entry_number,
)
from tidegate.commit.transactional_ids import parse_claim_id, parse_transactional_id
from tidegate.ids import TransactionalId
from tidegate.ports.kafka import TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import TopicPartition

STALL_S: Final = 45.0
"""Longest time in seconds that a transaction of a dead attempt may hold readers back after the end
of all faults. It covers the 10 s between two sweeps of zombie fencing, and the time that the
brokers take to answer a sweep.
"""

STOP_WAITS_S: Final = 30.0
"""Longest time in seconds after the end of all faults in which a stop may end without a close."""


class ProtocolChecker:
    """The checker of one job in one simulated cluster."""

    def __init__(
        self, scheduler: Scheduler, blobs: MemoryBlobs, kafka: FakeKafka, oracle: Oracle
    ) -> None:
        self._scheduler, self._blobs, self._kafka, self._oracle = scheduler, blobs, kafka, oracle
        self.journal = JournalView()
        self.found: Violation | None = None
        self.steps = 0
        """Number of steps of the commit protocol so far: created journal entries and EndTxn."""
        self.ends = 0
        """Number of EndTxn among the steps."""
        self.waves = 0
        """Number of completed waves of backfills."""
        self._listed_ms: dict[int, int] = {}
        """Time in ms, by the clock of the brokers, at which a process last listed transactions, by
        pid.
        """
        self._swept_ms = self._kafka.now_ms()
        """The same for the process that last closed the journal: it fences what it has listed."""
        self._attempts: dict[int, int] = {}
        """Attempt of each process by pid: the last claim of a JobMaster, or the one of a slot."""
        self._slots: set[int] = set()
        """Pids of the slots."""
        self._workers: dict[int, set[int]] = {}
        """Attempts whose tasks a backfill worker has run, by pid of the worker."""
        self._worker_of_id: dict[TransactionalId, int] = {}
        """Pid of the worker that has initialised a transactional id."""
        self._initialised_after: dict[int, int] = {}
        """Number of journal entries when a process last initialised a claim id, by its pid."""
        self._may_open: set[int] = set()
        """Attempts whose claims have initialised the claim id."""
        self._flaws: dict[int, str] = {}
        """Reason why the wave of a backfill attempt must not be published, by attempt."""
        self._unreported_losses: set[PreparedTransaction] = set()
        """Transactions whose loss must still be stated."""
        self.may_lose = False
        """Whether the brokers may be unreachable for longer than a transaction may stay open."""
        self.accepting = False
        """Whether the user has said that a loss is accepted."""
        self.must_refuse = ""
        """Reason why no checkpoint may be published now and no attempt may begin; empty if both
        are allowed.
        """
        self.may_claim = False
        """Whether an attempt may begin nevertheless: topics are compared only after the claim."""
        self.claimed: Callable[[int], None] | None = None
        """A callback for each attempt that has claimed."""
        self._open_since_s: dict[tuple[TransactionalId, int], float] = {}
        self._past_their_start: set[str] = set()
        """Submissions that never need their initial offsets again: they have a publication that
        cannot be rolled back, or their journal is closed."""
        blobs.watch = self._created
        blobs.deleted = self._deleted

    def record_slot(self, process: SimProcess, attempt: int) -> None:
        """Record that a slot process of an attempt has begun."""
        self._attempts[process.pid] = attempt
        self._slots.add(process.pid)

    def record_worker(self, process: SimProcess, attempt: int) -> None:
        """Record that a worker of a backfill begins a task of an attempt."""
        self.record_slot(process, attempt)
        self._workers.setdefault(process.pid, set()).add(attempt)

    def record_wave(self, attempt: int, flaw: str) -> None:
        """Record the end of the tasks of a wave.

        `flaw` says why its reports must not be published. It is empty if they may be.
        """
        self._flaws[attempt] = flaw

    def attempt_of(self, process: SimProcess) -> int | None:
        """Return the attempt of a slot, or the last attempt that a JobMaster has claimed."""
        return self._attempts.get(process.pid)

    def record_violation(self, message: str) -> None:
        """Record a violation. Only the first one is kept."""
        if self.found is None:
            self.found = Violation(message)
            self._scheduler.record_event("VIOLATION: %s", message)

    # --- the journal ----------------------------------------------------------------------------

    def _created(self, process: SimProcess, path: str, data: bytes) -> None:
        number = entry_number(path)
        if number is None:
            return
        self.steps += 1
        entry = decode_entry(data, path)
        journal = self.journal
        self._scheduler.story.record(
            self._scheduler.now, process.name, "journal %d: %s", number, describe_entry(entry)
        )
        if number != len(journal.entries) + 1:
            self.record_violation(
                f"journal entry {number} was created after {len(journal.entries)}"
            )
        journal.entries[number] = entry
        if isinstance(entry, Claim):
            journal.attempt, journal.submission = number, entry.submission_id
            journal.claimed_ms = self._kafka.now_ms()
            self._attempts[process.pid] = number
            if self._initialised_after.get(process.pid) == number - 1:
                self._may_open.add(number)
            if self.must_refuse and not self.may_claim:
                self.record_violation(f"attempt {number} has begun, although {self.must_refuse}")
            self._start_attempt(entry)
            if self.claimed is not None:
                self.claimed(number)
        else:
            self._check_entry(entry)

    def _deleted(self, process: SimProcess, path: str) -> None:
        submission = self.journal.submission
        needed = submission and submission not in self._past_their_start
        if needed and path.endswith(f"/beginnings/{submission}.json"):
            self.record_violation(f"{process.name} deletes {path}, which the next attempt needs")

    def _start_attempt(self, claim: Claim) -> None:
        """Set the start offsets of an attempt.

        If the user has chosen other offsets than those of the last publication, rewind the oracle.
        """
        journal = self.journal
        base = journal.restored(claim).offsets
        if base != journal.base:
            journal.base = base
            self._oracle.rewind(
                _by_topic_partition(journal.last.offsets), _by_topic_partition(base)
            )
        self._oracle.plain.start_attempt(journal.attempt, _by_topic_partition(base))
        if self._oracle.timed is not None:
            self._oracle.timed.start_attempt(journal.restored(claim).checkpoint)

    def _check_entry(self, entry: AnyEntry) -> None:
        match entry:
            case Claim():
                pass  # `_created` handles it, because it knows the process
            case Publication():
                self._published(entry)
            case Settled():
                self._settled(entry)
            case Lost():
                self._lost(entry)
            case RolledBack():
                self._rolled_back(entry)
            case LossAccepted():
                self._accepted()
            case Closed():
                self._check_newest_attempt("closed", entry.attempt)
                self._past_their_start.add(self.journal.submission)
                listed_ms = [
                    at_ms
                    for pid, at_ms in self._listed_ms.items()
                    if self._attempts.get(pid) == entry.attempt
                ]
                self._swept_ms = max(listed_ms, default=self._kafka.now_ms())

    def _published(self, entry: Publication) -> None:
        journal = self.journal
        self._check_newest_attempt("published", entry.attempt)
        if self.must_refuse:
            self.record_violation(f"{entry.checkpoint} is published, although {self.must_refuse}")
        flaw = self._flaws.get(entry.attempt, "")
        if flaw:
            self.record_violation(f"{entry.checkpoint} is published, although {flaw}")
        if journal.lost is not None:
            self.record_violation(
                f"{entry.checkpoint} is published after a loss that is not accepted"
            )
        if entry.checkpoint in journal.checkpoints:
            self.record_violation(f"checkpoint id {entry.checkpoint} was used twice")
        journal.checkpoints.add(entry.checkpoint)
        for each in entry.transactions:
            parts = parse_transactional_id(each.transactional_id)
            if parts is None or parts.attempt > entry.attempt:
                self.record_violation(f"{entry.checkpoint} names {each.transactional_id}")
        journal.named.update(map(_identity, entry.transactions))
        for each in entry.transactions:
            journal.first_named.setdefault(each, entry.number)
        journal.rollback_targets.append(journal.last)
        journal.last = JournalPosition(entry, frozenset(entry.transactions), self._offsets(entry))
        journal.base = journal.last.offsets
        if not entry.transactions:
            self._past_their_start.add(entry.submission_id)
        self._cut(self._manifest(entry))

    def _manifest(self, entry: Publication) -> Manifest:
        """Return the manifest of a publication."""
        data = self._blobs.objects.get(entry.manifest)
        return decode_manifest(data, entry.manifest, entry.sha256)

    def _cut(self, manifest: Manifest) -> None:
        """Check that the new publication covers all results written before it, and no others."""
        self.check_at_least_once_sinks()
        last, coordinator = self.journal.last, self._kafka.coordinator
        offsets = self.offsets()
        ended = {
            (producer_id, epoch)
            for (_, producer_id, epoch), decision in coordinator.decided.items()
            if decision is Decision.COMMITTED
        }
        named = {(each.producer_id, each.epoch) for each in last.named}
        try:
            self._oracle.cut(self._kafka.logs(), offsets, named | ended, manifest)
            self._oracle.plain.cut(self.journal.attempt, offsets)
        except Violation as violation:
            self.record_violation(str(violation))

    def _settled(self, entry: Settled) -> None:
        """Check that all transactions named by the last publication are committed."""
        self._check_is_last("settled", entry.publication)
        for each in self.journal.last.named:
            decision = self._decision_on(each)
            if decision is not Decision.COMMITTED:
                self.record_violation(
                    f"settled, and {each.transactional_id} is {_describe(decision)}"
                )
        self.journal.last = replace(self.journal.last, named=frozenset())
        if self.journal.last.publication is not None:
            self._past_their_start.add(self.journal.last.publication.submission_id)

    def _lost(self, entry: Lost) -> None:
        """Check that a stated loss is expected.

        At least one lost transaction must have timed out at the brokers. All other transactions
        that the publication names must be committed.
        """
        journal = self.journal
        self._check_is_last("lost", entry.publication)
        if not self.may_lose:
            self.record_violation(f"output is lost: {entry.statement}")
        for each in journal.last.named:
            decision = self._decision_on(each)
            stated = each in entry.transactions
            if stated is (decision is Decision.COMMITTED) or decision is Decision.FENCED:
                what = "is stated to be lost" if stated else "is not stated to be lost"
                self.record_violation(
                    f"{each.transactional_id} {what}, and is {_describe(decision)}"
                )
        self._check_has_timeout("stated a loss", entry.transactions)
        journal.lost = entry
        self._accept_data_loss(set(entry.transactions) - self._unreported_losses)
        self._unreported_losses -= set(entry.transactions)

    def _accept_data_loss(self, gone: AbstractSet[PreparedTransaction]) -> None:
        producers = {(each.producer_id, each.epoch) for each in gone}
        try:
            self._oracle.accept_data_loss(self._kafka.logs(), producers)
        except Violation as violation:
            self.record_violation(str(violation))

    def _find_losses(self) -> None:
        """Find transactions that are lost already, although no process has stated the loss yet.

        Such a transaction has timed out and cannot be rolled back, because a transaction of its
        publication or of a later one is committed. The loss must be stated later.
        """
        first = self.journal.first_named
        decision = {each: self._decision_on(each) for each in first}
        committed = [first[each] for each in first if decision[each] is Decision.COMMITTED]
        doomed = {
            each
            for each in self.journal.last.named - self._unreported_losses
            if decision[each] is Decision.TIMED_OUT and committed and first[each] <= max(committed)
        }
        if doomed and self.journal.lost is None:
            self._unreported_losses |= doomed
            self._accept_data_loss(doomed)

    def _accepted(self) -> None:
        self.journal.lost = None
        self.journal.last = replace(self.journal.last, named=frozenset())
        if not self.accepting:
            self.record_violation("a loss is accepted, and the user has not said so")

    def _rolled_back(self, entry: RolledBack) -> None:
        """Check that no transaction introduced by the rolled back publication is or will be
        committed.
        """
        journal = self.journal
        self._check_is_last("rolled back", entry.publication)
        before, carried = journal.rollback_targets.pop(), journal.last.named
        first = carried - before.named
        if first != frozenset(entry.aborted):
            self.record_violation(
                "a rollback names other transactions than its publication did first"
            )
        for each in first:
            decision = self._decision_on(each)
            if decision in {None, Decision.COMMITTED, Decision.FENCED}:
                self.record_violation(
                    f"rolled back, and {each.transactional_id} is {_describe(decision)}"
                )
        self._check_has_timeout("rolled back", tuple(carried))
        journal.last = replace(before, named=before.named & carried)
        journal.base = before.offsets
        if self._oracle.timed is not None:
            self._oracle.timed.roll_back(before.checkpoint)
        self._oracle.plain.start_attempt(journal.attempt, _by_topic_partition(journal.base))

    def _decision_on(self, each: PreparedTransaction) -> Decision | None:
        """Return the decision of the coordinator on a transaction; None if it is still open."""
        return self._kafka.coordinator.decided.get(_identity(each))

    def _check_is_last(self, what: str, number: int) -> None:
        last = self.journal.last.publication
        if last is None or last.number != number:
            self.record_violation(f"{what} is publication {number}, which is not the last")

    def _check_has_timeout(self, what: str, of: Sequence[PreparedTransaction]) -> None:
        if not any(self._decision_on(each) is Decision.TIMED_OUT for each in of):
            self.record_violation(f"{what}, and no transaction of it has timed out")

    def _check_newest_attempt(self, what: str, attempt: int) -> None:
        if attempt != self.journal.attempt:
            self.record_violation(
                f"attempt {attempt} {what} after attempt {self.journal.attempt} claimed"
            )

    def _offsets(self, entry: Publication) -> dict[tuple[str, str, int], int]:
        """Return the offsets in the manifest of a publication.

        Check that they are not before the offsets of the previous publication, or of the restore.
        """
        manifest = self._manifest(entry)
        known = self.journal.base
        for path in sorted(manifest.files):
            if f"{manifest.job}/{path}" not in self._blobs.objects:
                self.record_violation(
                    f"checkpoint {entry.checkpoint} names {path}, which is not stored"
                )
        offsets: dict[tuple[str, str, int], int] = {
            (each.source, each.topic, each.partition): each.offset for each in manifest.splits
        }
        for place, offset in offsets.items():
            if offset < known.get(place, 0):
                _, topic, partition = place
                self.record_violation(
                    f"checkpoint {entry.checkpoint} goes back in {topic}-{partition}: "
                    f"from offset {known[place]} to {offset}"
                )
        if not known.keys() <= offsets.keys():
            self.record_violation(f"checkpoint {entry.checkpoint} has lost a partition")
        return offsets

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets of the last publication."""
        return _by_topic_partition(self.journal.last.offsets)

    # --- brokers --------------------------------------------------------------------------------

    def check_request(self, call: Call, process: SimProcess | None) -> None:
        """Check a request that is sent to a coordinator."""
        name = call.transactional_id
        if call.api is Api.LIST_TRANSACTIONS and process is not None:
            self._listed_ms[process.pid] = self._kafka.now_ms()
        if name is None or process is None:
            return
        if call.api is Api.END_TXN:
            self.steps += 1
            self.ends += 1
            if (name, *(call.producer or ())) not in self.journal.named:
                self.record_violation(
                    f"{name} is ended as {call.producer}, and no publication names it"
                )
        elif call.api is Api.INIT_PRODUCER_ID:
            self._initialised(name, process)

    def _initialised(self, name: TransactionalId, process: SimProcess) -> None:
        """Check an InitProducerId.

        Only a process that claims initialises the claim id, after the entry before its claim. An
        attempt opens no id if its claim has not done so: the next first claim could not know of it.
        """
        own_attempt = self._attempts.get(process.pid)
        if parse_claim_id(name) is not None and process.pid not in self._slots:
            self._initialised_after[process.pid] = len(self.journal.entries)
            return
        parts = parse_transactional_id(name)
        if parts is None or own_attempt is None:
            self.record_violation(f"{process.name} initialises {name}")
            return
        if parts.attempt > own_attempt:
            self.record_violation(
                f"{process.name} of attempt {own_attempt} fences {name} of a newer attempt"
            )
        if process.pid in self._slots:
            if parts.attempt not in self._may_open:
                self.record_violation(
                    f"{process.name} initialises {name}, and its claim has not initialised its id"
                )
            # An I/O thread of a worker may repeat a request of an earlier task of the worker.
            if parts.attempt not in self._workers.get(process.pid, {own_attempt}):
                self.record_violation(f"a slot of attempt {own_attempt} initialises {name}")
            if self._kafka.coordinator.list().get(name) is TransactionState.ONGOING:
                self.record_violation(
                    f"{process.name} initialises {name}, whose transaction is open"
                )
        is_worker = process.pid in self._workers
        if is_worker and self._worker_of_id.setdefault(name, process.pid) != process.pid:
            self.record_violation(f"{process.name} initialises {name}, as another worker has done")
        if name in self.journal.unsettled:
            self.record_violation(
                f"{process.name} initialises {name}, which an unsettled publication names"
            )

    def on_marker(self, log: PartitionLog) -> None:
        """Check a partition in which a transaction has ended."""
        if self.may_lose:
            self._find_losses()
        try:
            self._oracle.check_partition(log)
        except Violation as violation:
            self.record_violation(str(violation))

    def record_plain_producer(self, producer: tuple[int, int], process: SimProcess) -> None:
        """Record that a slot has made a producer without transactions."""
        self._oracle.plain.record_producer(producer, self._attempts[process.pid])

    def check_at_least_once_sinks(self) -> None:
        """Check the at-least-once sinks.

        Writes to them cause no event, so callers must call this before they use the result.
        """
        try:
            self._oracle.check_at_least_once_sinks(self._kafka.logs())
        except Violation as violation:
            self.record_violation(str(violation))

    def check_source_start(self, process: SimProcess) -> None:
        """Check that a slot that begins to read finds no open transaction of a dead attempt."""
        own_attempt = self._attempts.get(process.pid, 0)
        if own_attempt != self.journal.attempt:
            return  # the slot is a zombie
        for name, state in self._kafka.coordinator.list().items():
            parts = parse_transactional_id(name)
            if (
                parts is None
                or parts.attempt >= own_attempt
                or state is not TransactionState.ONGOING
            ):
                continue
            began_ms = self._kafka.coordinator.describe(name).start_ms
            if began_ms < self.journal.claimed_ms:
                self.record_violation(
                    f"a source of attempt {own_attempt} starts, and {name} is not fenced"
                )

    # --- transactions that stay open ------------------------------------------------------------

    def check_for_stalls(self, *, quiet_since_s: float | None) -> None:
        """Check that transactions of dead attempts do not hold readers back for too long.

        The run calls it at regular intervals.
        """
        now_s = self._scheduler.now
        open_now: dict[tuple[TransactionalId, int], float] = {}
        for name, state in self._kafka.coordinator.list().items():
            if state is not TransactionState.ONGOING:
                continue
            parts = parse_transactional_id(name)
            if parts is None or parts.attempt >= self.journal.attempt:
                continue
            which = (name, self._kafka.coordinator.describe(name).start_ms)
            open_now[which] = self._open_since_s.get(which, now_s)
            if quiet_since_s is not None:
                since_s = max(open_now[which], quiet_since_s)
                if now_s - since_s > STALL_S:
                    self.record_violation(
                        f"{name} of a dead attempt is open for {now_s - since_s:.0f} s"
                    )
        self._open_since_s = open_now

    def ended(self, submission: str, state: str) -> None:
        """Check that the journal of a job that is reported as ended says the same.

        A submission that has not claimed has no entries, so there is nothing to check.
        """
        journal = self.journal
        if journal.submission != submission or journal.lost is not None:
            return
        last = journal.entries[len(journal.entries)]
        if not isinstance(last, Closed) or last.outcome.upper() != state:
            self.record_violation(
                f"the job is {state.lower()}, and its journal ends with {describe_entry(last)}"
            )

    def stop_timed_out(self, *, quiet_since_s: float | None) -> None:
        """Check that a stop ended the job without closing its journal because of a fault."""
        if quiet_since_s is not None and self._scheduler.now - quiet_since_s > STOP_WAITS_S:
            self.record_violation("a stop without a fault did not wait for the close")

    def check_no_window_is_stored(self) -> None:
        """Check that the last checkpoint of a job that has drained stores no window."""
        entries = self.journal.entries
        published = [entries[number] for number in sorted(entries)]
        last = next((one for one in reversed(published) if isinstance(one, Publication)), None)
        if last is None:
            return
        for uid, count in stored_windows(self._manifest(last), self._blobs.objects).items():
            self.record_violation(f"the job has drained, and step {uid} stores {count} windows")

    def check_nothing_open(self) -> None:
        """Check that at the end of a job no transaction is open and all losses were stated."""
        for each in self._unreported_losses:
            self.record_violation(
                f"{each.transactional_id} has timed out, and no entry states the loss"
            )
        for name, state in self._kafka.coordinator.list().items():
            if state is TransactionState.ONGOING and not self._is_of_late_worker(name):
                self.record_violation(f"{name} is open after the end of the job")

    def _is_of_late_worker(self, name: TransactionalId) -> bool:
        """Return whether a task of a dead backfill opened a transaction after the last listing
        before the journal closed.

        No process of the job is left to end it, so it is never committed. Readers wait for the next
        claim or for the timeout of the transaction.
        """
        parts = parse_transactional_id(name)
        if parts is None or name not in self._worker_of_id:
            return False
        is_late = self._kafka.coordinator.describe(name).start_ms > self._swept_ms
        return is_late and parts.attempt < self.journal.attempt


def _by_topic_partition(offsets: Mapping[tuple[str, str, int], int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, partition): at for (_, topic, partition), at in offsets.items()}


def _identity(each: PreparedTransaction) -> tuple[TransactionalId, int, int]:
    return each.transactional_id, each.producer_id, each.epoch


def _describe(decision: Decision | None) -> str:
    return "open" if decision is None else decision.value
