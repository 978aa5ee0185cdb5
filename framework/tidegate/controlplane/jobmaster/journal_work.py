"""Everything of a job that touches its journal: recovery, publication, commit, the close.

One thread runs them in the order in which they were asked for, because they compete for the
journal's next number (`checkpoint/procedures`): a recovery waits for a publication whose outcome is
not known yet, and then finds it. The procedures decide; this module gives them drivers, carries
results back to the loop, and reads what a restore needs. The sweep writes nothing and has a thread
of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.checkpoint.coordination import Complete
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.procedures import (
    OwnJournal,
    claim,
    close,
    commit,
    confirm,
    fix_beginnings,
    load_manifest,
    publish,
    recover,
    settle,
    sweep,
    trim,
)
from tidegate.checkpoint.procedures.cleaning import Cleaning, delete_unneeded
from tidegate.checkpoint.restore import Restoration, restore
from tidegate.checkpoint.timeouts import required_transaction_timeout_ms
from tidegate.controlplane.jobmaster.effects import EffectRunner, untold
from tidegate.controlplane.jobmaster.plan_of_job import (
    JobPlan,
    state_conflict,
    transaction_slots,
    warm_producers,
)
from tidegate.controlplane.jobmaster.split_enumeration import enumerate_partitions
from tidegate.errors import (
    JobClosedError,
    KafkaError,
    OutcomeUnknownError,
    StorageError,
    TidegateError,
)
from tidegate.ids import Attempt
from tidegate.ports.drivers import Drivers
from tidegate.protocol.messages import Deploy, RestoredState, Submission
from tidegate.protocol.snapshots import PreparedTransaction

Action = Callable[[], None]

CLOSE_PATIENCE_S: Final = 60.0
"""How long the close is tried again when storage or Kafka fail in the middle of it."""
CLOSE_PAUSE_S: Final = 0.5

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredJob:
    """What an attempt begins with: the job is settled and fenced, and this is what it restores."""

    attempt: Attempt
    journal: str
    finished: bool
    """This submit's final checkpoint is published: nothing is left but to close."""
    submission: Submission
    restoration: Restoration
    """Empty where it is finished."""
    transaction_timeout_ms: int
    warm_producers: int
    transaction_slots: int

    def deploy(self, ordinal: int, peers: tuple[str, ...]) -> Deploy:
        """What one slot is told."""
        return Deploy(
            job=self.submission.job,
            attempt=self.attempt,
            ordinal=ordinal,
            journal=self.journal,
            submission=self.submission,
            peers=peers,
            splits=self.restoration.splits[ordinal],
            restored={
                uid: RestoredState(snapshots=snapshots)
                for uid, snapshots in self.restoration.keyed[ordinal].items()
            },
            transaction_timeout_ms=self.transaction_timeout_ms,
            warm_producers=self.warm_producers,
            transaction_slots=self.transaction_slots,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationOutcome:
    """What is called, in the loop, as a publication goes on; `failed` ends the attempt.

    `committed` gets the transactions that have ended, and those whose ids may be used again.
    """

    published: Callable[[], None]
    not_published: Callable[[str], None]
    committed: Callable[[tuple[PreparedTransaction, ...], tuple[PreparedTransaction, ...]], None]
    failed: Callable[[TidegateError], None]


class JournalWork:
    """The journal thread of one JobMaster. Methods return at once; outcomes are posted."""

    def __init__(
        self,
        submission: Submission,
        plan: JobPlan,
        drivers: Drivers,
        post: Callable[[Action], None],
        trouble: Callable[[TidegateError], None] = untold,
        *,
        wanted: Callable[[], bool],
    ) -> None:
        """`trouble` is called, in the loop, with what stands in the way of work that is tried
        again: brokers that do not answer, a storage that fails. `wanted` asks whether this process
        is still the job's JobMaster.
        """
        self._submission, self._plan, self._drivers, self._post = submission, plan, drivers, post
        self._trouble = trouble
        self._config = plan.config
        self._thread = drivers.threads.pool(1, name="journal")
        self._sweeper = drivers.threads.pool(1, name="sweep")
        self._sweeping = False
        self._effects: EffectRunner | None = None
        self._kafka_cluster = ""
        self._journal: OwnJournal | None = None
        self._cleaning = Cleaning()
        #: Publications asked for before this many attempts had ended are not begun any more.
        self._generation = 0
        #: Names this process in its claims: it may claim again only what is still its own.
        self._claimant = drivers.entropy.token_hex(8)
        self._has_claimed = False
        self._wanted = wanted
        #: When it was last sure that nobody had taken this process's place.
        self._sure_until_s = 0.0

    def recover(
        self,
        claimed: Callable[[Attempt], None],
        done: Callable[[RecoveredJob | TidegateError], None],
    ) -> None:
        """Claim, then settle, fence and resolve what is restored."""

        def work() -> None:
            try:
                outcome: RecoveredJob | TidegateError = self._recover(claimed)
            except TidegateError as error:
                outcome = error
            self._post(lambda: done(outcome))

        self._submit(work)

    def confirm(self, done: Callable[[TidegateError | None], None]) -> None:
        """Whether the job is still this attempt's, before its slots begin. Where the storage does
        not say they begin: what they write is safe without the answer.
        """

        def work() -> None:
            failure: TidegateError | None = None
            try:
                if self._journal is not None:
                    self._runner().run(confirm(self._journal))
            except StorageError as error:
                _log.warning("whose the job is was not seen", extra={"error": str(error)})
            except TidegateError as error:
                failure = error
            self._post(lambda: done(failure))

        self._submit(work)

    def publish(self, complete: Complete, outcome: PublicationOutcome) -> None:
        """Publish a checkpoint; then end and settle what it names."""
        generation = self._generation

        def work() -> None:
            if generation == self._generation:
                self._publish(complete, outcome)

        self._submit(work)

    def abandon(self) -> None:
        """The attempt is over: a publication that has not begun never does."""
        self._generation += 1

    def sweep(self) -> None:
        """Fence what zombies of older attempts have opened since; failures wait for the next
        one. Does nothing while one is under way: without a broker each takes longer than the time
        to the next, and they would pile up.
        """
        journal = self._journal
        if journal is None or self._sweeping:
            return
        self._sweeping = True

        def work() -> None:
            try:
                fenced = self._runner().run(sweep(journal))
            except TidegateError as error:
                _log.warning("the sweep failed and is repeated", extra={"error": str(error)})
                return
            finally:
                self._sweeping = False
            if fenced:
                _log.warning("fenced transactions of older attempts", extra={"ids": list(fenced)})

        self._sweeper.submit(work)

    def close(self, outcome: str, done: Callable[[TidegateError | None], None]) -> None:
        """Settle, fence, close the journal.

        Claims it first where no attempt did, and where an attempt gave up without knowing whether
        its last entry was written: that may be a publication, and nothing that it names may be
        aborted.
        """

        def work() -> None:
            failure: TidegateError | None = None
            try:
                self._close(outcome)
            except TidegateError as error:
                _log.warning("the journal could not be closed", extra={"error": str(error)})
                failure = error
            self._post(lambda: done(failure))

        self._submit(work)

    # --- in the journal thread ------------------------------------------------------------------

    def _recover(self, claimed: Callable[[Attempt], None]) -> RecoveredJob:
        self._journal = None
        journal = self._claim()
        self._post(lambda: claimed(journal.attempt))
        run = self._runner().run
        recovered = run(recover(journal))
        for retracted in recovered.retracted:
            _log.warning(
                "took a checkpoint back that Kafka did not keep", extra={"id": str(retracted)}
            )
        _log.info(
            "recovered",
            extra={
                "attempt": journal.attempt,
                "ended": len(recovered.ended),
                "fenced": len(recovered.fenced),
            },
        )
        self._journal, self._cleaning = journal, Cleaning()
        checkpoint = self._config.checkpoint
        return RecoveredJob(
            attempt=journal.attempt,
            journal=journal.name,
            finished=journal.finished,
            submission=self._submission,
            restoration=self._restoration(journal),
            transaction_timeout_ms=required_transaction_timeout_ms(checkpoint),
            warm_producers=warm_producers(checkpoint),
            transaction_slots=transaction_slots(checkpoint),
        )

    def _restoration(self, journal: OwnJournal) -> Restoration:
        if journal.finished:
            # All of it is committed: a source that was deleted since must not make a failed job
            # of it.
            return Restoration(keyed=(), splits=(), new_partitions=())
        point = journal.restore_point(self._submission.restore)
        manifest = None if point is None else self._runner().run(load_manifest(point))
        return self._resolve(manifest)

    def _close(self, outcome: str) -> None:
        """Again while storage or Kafka fail: the job's output is complete, and a hiccup of either
        must not make a failed job of it.
        """
        clock = self._drivers.clock
        give_up_s = clock.monotonic() + CLOSE_PATIENCE_S
        while True:
            try:
                if self._journal is None or self._journal.in_doubt:
                    self._journal = self._claim()
                self._runner().run(close(self._journal, outcome))
            except JobClosedError as error:
                if error.outcome != outcome:
                    raise
                return  # by this very close, whose answer was lost
            except (StorageError, KafkaError) as error:
                if clock.monotonic() >= give_up_s:
                    raise
                _log.warning("the journal is not closed yet", extra={"error": str(error)})
                clock.sleep(CLOSE_PAUSE_S)
            else:
                return

    def _claim(self) -> OwnJournal:
        """Begin an attempt; ProcedureStopped where another process has taken this one's place.

        A process that stood still in the middle of its first claim would otherwise push out, when
        it goes on, the one that was started instead. Asked before each step, so that a claim which
        passes and stands still again comes too late: its number is taken by then.
        """
        submission = self._submission
        journal = self._runner().run(
            claim(
                submission.job,
                submission=submission.id,
                restore=submission.restore,
                accept_loss=submission.accept_loss,
                take_over=submission.take_over,
                claimant=self._claimant,
                again=self._has_claimed,
            ),
            should_stop=self._replaced,
        )
        self._has_claimed = True
        return journal

    def _replaced(self) -> bool:
        """Whether this is not the job's JobMaster any more; sure for the time in which nobody can
        have been given up.
        """
        now_s = self._drivers.clock.monotonic()
        if now_s < self._sure_until_s:
            return False
        if not self._wanted():
            return True
        self._sure_until_s = now_s + self._config.cluster.heartbeat_interval / 1000
        return False

    def _resolve(self, manifest: Manifest | None) -> Restoration:
        admin = self._drivers.kafka_admin(self._plan.kafka)
        try:
            partitions = enumerate_partitions(
                self._plan.graph,
                self._config,
                self._submission.job,
                admin,
                bounded=self._submission.bounded,
            )
        finally:
            admin.close()
        if manifest is None or manifest.submission != self._submission.id:
            begin = fix_beginnings(self._submission.job, self._submission.id, partitions)
            partitions = self._runner().run(begin)
        restoration = restore(
            manifest,
            self._plan.facts,
            partitions,
            submission=self._submission.id,
            schema_conflict=state_conflict,
        )
        for added in restoration.new_partitions:
            _log.info("new partition", extra={"topic": added.topic, "partition": added.partition})
        return restoration

    def _publish(self, complete: Complete, outcome: PublicationOutcome) -> None:
        journal = self._journal
        if journal is None or journal.attempt != complete.checkpoint.attempt:
            return  # the attempt ended while this waited
        run, post = self._runner().run, self._post
        try:
            published = run(publish(journal, self._manifest(complete), complete.transactions))
        except (StorageError, KafkaError) as error:
            if isinstance(error, OutcomeUnknownError):
                _fail(post, outcome, error)
            else:
                reason = str(error)
                post(lambda: outcome.not_published(reason))
            return
        except TidegateError as error:
            _fail(post, outcome, error)
            return
        post(outcome.published)
        try:
            result = run(commit(journal))
            freed = (*published.freed, *run(settle(journal, result)))
        except TidegateError as error:
            _fail(post, outcome, error)
            return
        post(lambda: outcome.committed(result.ended, freed))
        self._delete_unneeded(journal)

    def _delete_unneeded(self, journal: OwnJournal) -> None:
        retained = self._config.checkpoint.retained
        try:
            self._runner().run(delete_unneeded(journal, self._cleaning, retained=retained))
            self._runner().run(trim(journal))
        except StorageError as error:
            _log.warning("old files stay until the next checkpoint", extra={"error": str(error)})

    def _manifest(self, complete: Complete) -> Manifest:
        return Manifest(
            job=self._submission.job,
            checkpoint=complete.checkpoint,
            submission=self._submission.id,
            created_ms=self._drivers.clock.now_ms(),
            final=complete.final,
            kafka_cluster=self._kafka_cluster,
            fingerprint=self._submission.fingerprint,
            plan=self._plan.facts,
            subtasks=complete.snapshots,
            graph=self._plan.graph.describe(),
        )

    def _runner(self) -> EffectRunner:
        """Made at first use, in a worker thread: connecting to Kafka takes its time."""
        if self._effects is None:
            storage = self._config.checkpoint.storage
            if "://" not in storage:
                storage = str(Path(self._submission.working_folder, storage))
            transactions = self._drivers.transaction_log(self._plan.kafka)
            self._kafka_cluster = transactions.cluster_id()
            self._effects = EffectRunner(
                self._drivers.blob_store(storage),
                transactions,
                self._drivers.clock,
                self._drivers.threads,
                nonce=lambda: self._drivers.entropy.token_hex(8),
                trouble=lambda error: self._post(lambda: self._trouble(error)),
            )
        return self._effects

    def _submit(self, work: Action) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - a bug: it must end the process
                self._post(partial(_raise, error))

        self._thread.submit(guarded)


def _fail(
    post: Callable[[Action], None], outcome: PublicationOutcome, error: TidegateError
) -> None:
    post(lambda: outcome.failed(error))


def _raise(error: BaseException) -> None:
    raise error
