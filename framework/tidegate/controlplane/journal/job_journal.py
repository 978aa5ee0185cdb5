"""A job's journal with the operations of a running job: recover, publish, commit, sweep, close.

The procedures (`commit`) decide. This module gives them drivers, and reads the data
that a restore needs. Every method blocks until its work is complete. The methods compete for the
journal's next number, so one thread calls all of them except `fence_zombies`, which writes nothing.
In a JobMaster this is the journal thread (`journal_worker.py`), in a backfill the driver's thread.
A failure of the operating system is raised as an error of tidegate, so that it restarts the job and
does not end the process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tidegate.api.connectors.kafka_names import kafka_nodes, topic_of
from tidegate.checkpoint.coordinator_events import PublishCheckpoint
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.restore import RestorePlan
from tidegate.commit.claim import claim, claim_to_close
from tidegate.commit.cleanup import CheckpointCleanup, clean_up
from tidegate.commit.cluster_check import (
    is_other_cluster,
    load_manifest_if_readable,
    refuse_manifest,
)
from tidegate.commit.committer import commit
from tidegate.commit.fencing import fence_zombies
from tidegate.commit.journal.claimed import ClaimedJournal, check_ownership
from tidegate.commit.lost_tail import SplitKey, read_again
from tidegate.commit.publish import load_manifest, publish
from tidegate.commit.recover import close, recover
from tidegate.commit.settle import settle
from tidegate.commit.timeouts import required_transaction_timeout_ms
from tidegate.commit.truncation import truncate
from tidegate.config import Config
from tidegate.controlplane.journal.effect_runner import EffectRunner, ignore_retry, run_to_end
from tidegate.controlplane.journal.job_plan import (
    JobPlan,
    opens_transactions,
    producer_pool_size,
    transactional_ids_per_subtask,
)
from tidegate.controlplane.journal.job_storage import JobStorage
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.controlplane.journal.restore_resolver import RestoreResolver
from tidegate.controlplane.journal.sink_coordinators import SinkCoordinators
from tidegate.controlplane.journal.split_enumeration import group_commits
from tidegate.errors import (
    ClusterMismatchError,
    InternalError,
    JobClosedError,
    KafkaError,
    RefusedError,
    ResourceExhaustedError,
    StorageError,
    SystemCallError,
    TidegateError,
    TransactionSystemError,
    foreign_translated,
    is_recoverable,
)
from tidegate.ids import Attempt, TransactionalId
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.job_state import JobState
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import PreparedTransaction

CLOSE_TIMEOUT_S: Final = 60.0
"""The time in seconds for which the close is repeated if the storage, Kafka or the operating system
fails during it."""
CLOSE_PAUSE_S: Final = 0.5

_PASSING: Final = (StorageError, TransactionSystemError, ResourceExhaustedError, SystemCallError)
"""The errors after which the close is retried."""

_log = logging.getLogger(__name__)


class JobJournal:
    """The journal of one job, for one process that claims attempts of the job."""

    def __init__(
        self,
        submission: Submission,
        config: Config,
        drivers: Drivers,
        *,
        storage: str = "",
        wanted: Callable[[], bool],
        on_retry: Callable[[TidegateError], None] = ignore_retry,
    ) -> None:
        """Start without a claim. `wanted` returns whether this process may still claim. `on_retry`
        is called, in any thread, with each error of work that is retried. `storage` is the id
        of the checkpoint storage if it is known, else empty.
        """
        self._submission, self._config = submission, config
        self._drivers, self._on_retry = drivers, on_retry
        self._plan: JobPlan | None = None
        self.storage = JobStorage(config.checkpoint, submission.working_folder, drivers, storage)
        self._effects: EffectRunner | None = None
        self._sinks = SinkCoordinators(drivers)
        self.claimed: ClaimedJournal | None = None
        """The claim of the newest attempt. None before the claim."""
        self._cleanup = CheckpointCleanup()
        #: The name of this process in its claims. It may claim again only if its own claim is the
        #: newest one.
        self._process_id = drivers.entropy.token_hex(8)
        self._has_claimed = False
        #: The newest attempt that this process, or an earlier one, has claimed.
        self._claimed_attempt = submission.claimed_attempt
        #: The commits of the consumer groups before this process claimed.
        self._commits: dict[SplitKey, GroupCommit] = {}
        self._is_current = wanted
        #: The monotonic time until which no other process can have taken this process's place.
        self._sure_until_s = 0.0

    def fetch_code(self) -> Path | TidegateError | None:
        """Fetch the code of the job to this host, as soon as its storage is there. See
        `JobStorage.fetch_code`.
        """
        return self.storage.fetch_code(self._submission, self._config, self._replaced)

    @foreign_translated()
    def recover(
        self, plan: JobPlan | TidegateError, claimed: Callable[[Attempt], None]
    ) -> RecoveredJob:
        """Claim, settle and fence, then resolve the state to restore. `claimed` is called, in this
        thread, when the attempt has its number.

        If `plan` is an error, this does only the work that needs no user code, and does not call
        `claimed`. It then raises that error, unless the final checkpoint is already published.
        """
        try:
            return self._recover(plan, claimed)
        except ClusterMismatchError:
            self._effects = None  # its Kafka clients remember brokers of the other cluster
            raise

    def _recover(
        self, plan: JobPlan | TidegateError, claimed: Callable[[Attempt], None]
    ) -> RecoveredJob:
        self.claimed = None
        if not isinstance(plan, TidegateError):
            self._sinks.use(plan.graph)
        self.storage.wait_until_available(self._replaced)
        # Set together with the claim, so that every later failure is handled in the same way.
        journal = self.claimed = self._claim_for(plan)
        _log.info("claimed", extra={"attempt": journal.attempt})
        if not isinstance(plan, TidegateError):
            claimed(journal.attempt)
        run = self._runner().run
        recovered = run(recover(journal))
        for rolled_back in recovered.rolled_back:
            _log.warning(
                "rolled back a checkpoint whose transactions Kafka aborted",
                extra={"id": str(rolled_back)},
            )
        if recovered.abandoned:
            ids = [txn.transactional_id for txn in recovered.abandoned]
            _log.warning("abandoned transactions of another Kafka cluster", extra={"ids": ids})
        _log.info(
            "recovered",
            extra={
                "attempt": journal.attempt,
                "ended": len(recovered.ended),
                "fenced": len(recovered.fenced),
            },
        )
        self._cleanup = CheckpointCleanup()
        if not isinstance(plan, TidegateError):
            self._plan = plan
        elif not journal.final_checkpoint_published:
            raise plan
        checkpoint = self._config.checkpoint
        return RecoveredJob(
            attempt=journal.attempt,
            journal_id=journal.journal_id,
            claim_nonce=journal.claim_nonce,
            kafka_cluster=journal.state.kafka_cluster,
            finished=journal.final_checkpoint_published,
            stopped=journal.stopped,
            submission=self._submission,
            restore_plan=self._make_restore_plan(journal),
            transaction_timeout_ms=required_transaction_timeout_ms(checkpoint),
            producer_pool_size=producer_pool_size(checkpoint),
            transactional_ids_per_subtask=transactional_ids_per_subtask(checkpoint),
            max_message_bytes={}
            if journal.final_checkpoint_published
            else self._max_message_bytes(),
            read_again=self._read_again(journal),
            storage=self.storage.identity,
            host=self._drivers.process.host,
            tz_database="" if self._plan is None else self._plan.state_metadata.tz_database,
        )

    @foreign_translated()
    def check_ownership(self) -> None:
        """Raise FencedError if the job does not belong to this attempt any more."""
        if self.claimed is not None:
            self._runner().run(check_ownership(self.claimed))

    @foreign_translated()
    def publish(
        self,
        complete: PublishCheckpoint,
        *,
        stopped: bool = False,
        is_canceled: Callable[[], bool] = run_to_end,
    ) -> tuple[PreparedTransaction, ...]:
        """Publish a checkpoint of the newest attempt. Return the transactions whose ids this frees.
        `is_canceled` returns whether the attempt has ended. In that case, a request that Kafka does
        not answer is not repeated, and the publication fails.

        StorageError or TransactionSystemError if nothing was published. OutcomeUnknownError if the
        outcome is not known.
        """
        journal = self._required_claim()
        manifest = self._manifest(journal, complete)
        published = self._runner().run(
            publish(
                journal, manifest, complete.transactions, stopped=stopped, is_canceled=is_canceled
            )
        )
        return published.reusable

    @foreign_translated()
    def commit(self) -> tuple[tuple[PreparedTransaction, ...], tuple[PreparedTransaction, ...]]:
        """Commit the transactions that the last publication lists, and settle it. Return the
        transactions that have ended, and those whose ids this frees.
        """
        journal, run = self._required_claim(), self._runner().run
        result = run(commit(journal))
        return result.ended, run(settle(journal, result))

    @foreign_translated()
    def fence_zombies(self) -> Sequence[TransactionalId]:
        """Fence transactional ids that zombies of older attempts have opened since. Return them."""
        claimed = self.claimed  # read once: a recovery in the other thread sets it to None
        return () if claimed is None else self._runner().run(fence_zombies(claimed))

    def close(self, outcome: str, stopped: str) -> None:
        """Settle, fence, and close the journal.

        Claim the journal first if no attempt has claimed it, or if it is not known whether the last
        entry was written. That entry may be a publication, and no transaction that it lists may be
        aborted. If the job has failed and nothing of this submission has run, close nothing.

        Repeat all this for `CLOSE_TIMEOUT_S` if the storage, Kafka or the operating system fails.
        The job's output is complete, and a short failure must not turn it into a failed job.
        """
        clock = self._drivers.clock
        deadline_s = clock.monotonic() + CLOSE_TIMEOUT_S
        failed = outcome == JobState.FAILED.outcome
        while True:
            try:
                with foreign_translated():
                    if self.claimed is None or self.claimed.last_write_unknown:
                        self.claimed = self._claim_to_close() if failed else self._claim()
                    if self.claimed is not None:
                        self._runner().run(close(self.claimed, outcome, stopped=stopped))
            except JobClosedError as error:
                if error.outcome != outcome:
                    raise
                return  # an earlier try has closed the journal, and its answer was lost
            except _PASSING as error:
                if clock.monotonic() >= deadline_s:
                    raise
                _log.warning("the journal is not closed yet", extra={"error": str(error)})
                clock.sleep(CLOSE_PAUSE_S)
            else:
                return

    def disconnect(self) -> None:
        """Close the connections to Kafka. This is the last call. A JobMaster exits without it."""
        effects, self._effects = self._effects, None
        if effects is not None:
            effects.close()

    def _max_message_bytes(self) -> dict[str, int]:
        """Return `max.message.bytes` of each sink topic. Each attempt asks Kafka again, because a
        user may have raised the limit after the job failed.
        """
        nodes = [n for n in kafka_nodes(self._required_plan().graph) if n.kind == "sink"]
        admin = self._drivers.kafka_admin(self._config.kafka.client_settings())
        try:
            return admin.max_message_bytes({topic_of(self._config, node) for node in nodes})
        finally:
            admin.close()

    def _read_again(self, journal: ClaimedJournal) -> str:
        """Return a text with the offsets that are read again because the user restores a checkpoint
        by its id. Empty if no offset is read again.
        """
        restore = self._submission.restore
        if (
            restore in {"latest", "none"}
            or not journal.is_first_claim
            or journal.final_checkpoint_published
        ):
            return ""
        point, last = journal.restore_point(restore), journal.restore_point("latest")
        if point is None or last is None:
            return ""
        run = self._runner().run
        newest = run(load_manifest_if_readable(last))
        reached = () if newest is None else newest.splits
        return read_again(
            journal.journal_id, run(load_manifest(point)).splits, reached, self._commits
        )

    def _make_restore_plan(self, journal: ClaimedJournal) -> RestorePlan:
        if journal.final_checkpoint_published:
            # All output is committed. A source topic that was deleted since then must not turn
            # this into a failed job.
            return RestorePlan(keyed=(), splits=(), new_partitions=())
        point = journal.restore_point(self._submission.restore)
        restoring = RestoreResolver(
            self._submission,
            self._required_plan(),
            self._config,
            self._drivers,
            self._runner(),
            self._on_retry,
        )
        if point is None:
            return restoring.resolve(None)
        manifest = self._runner().run(load_manifest(point))
        cluster = journal.state.kafka_cluster
        refuse_manifest(manifest, journal.state, cluster)  # a rollback may lead to an older one
        return restoring.resolve(manifest, on_other_cluster=is_other_cluster(manifest, cluster))

    def _claim(self, plan: JobPlan | None = None) -> ClaimedJournal:
        """Claim the journal for a new attempt. ProcedureStopped if another process has taken this
        process's place. An attempt without a plan is never deployed.

        Without this check, a process that hangs during its first claim and then continues would
        fence the process that was started in its place. The runner checks before each step. So a
        claim that passes the check and hangs again comes too late: its number is taken by then.
        """
        submission = self._submission
        procedure = claim(
            submission.job,
            submission_id=submission.id,
            restore=submission.restore,
            accept_data_loss=submission.accept_data_loss,
            take_over=submission.take_over,
            restore_to_other_cluster=submission.restore_to_other_cluster,
            process_id=self._process_id,
            repeated=self._has_claimed,
            claimed_attempt=self._claimed_attempt,
            commits={} if self._has_claimed else self._commits,
            opens_transactions=plan is not None and opens_transactions(plan.graph),
        )
        journal = self._runner().run(procedure, should_stop=self._replaced)
        self._has_claimed, self._claimed_attempt = True, journal.attempt
        return journal

    def _claim_for(self, plan: JobPlan | TidegateError) -> ClaimedJournal:
        """Claim the journal. If there is no plan, and nothing of this submission has run, raise the
        error that left the job without a plan.
        """
        self.claimed = None
        if not isinstance(plan, TidegateError):
            if not self._has_claimed:
                self._commits = self._group_commits(plan)
            return self._claim(plan)
        if is_recoverable(plan):
            if not self._claimed_attempt:
                # The first claim of a submission compares the journal with Kafka's data about the
                # job, which needs the plan. Nothing of the submission has run yet.
                raise plan
            return self._claim()
        journal = self._claim_to_close()
        if journal is None:
            raise plan
        return journal

    def _claim_to_close(self) -> ClaimedJournal | None:
        """Claim the journal only to settle and close it. Return None if nothing of this submission
        has run.
        """
        procedure = claim_to_close(
            self._submission.job,
            submission_id=self._submission.id,
            process_id=self._process_id,
            repeated=self._has_claimed,
            claimed_attempt=self._claimed_attempt,
        )
        journal = self._runner().run(procedure, should_stop=self._replaced)
        if journal is not None:
            self._has_claimed, self._claimed_attempt = True, journal.attempt
        return journal

    def _group_commits(self, plan: JobPlan) -> dict[SplitKey, GroupCommit]:
        """Return the commits of the consumer groups; empty if they cannot be read. The right to
        read them is not needed to run a job, and the transactional ids that Kafka lists show most
        of the same.
        """
        if not any(node.kind == "source" for node in plan.graph):
            return {}
        admin = self._drivers.kafka_admin(self._config.kafka.client_settings())
        try:
            return group_commits(plan.graph, self._submission.job, admin)
        except (KafkaError, RefusedError) as error:
            _log.warning(
                "the offsets of the consumer groups are not compared with the journal",
                extra={"error": str(error)},
            )
            return {}
        finally:
            admin.close()

    def _replaced(self) -> bool:
        """Return whether this process is not the job's JobMaster any more. The answer False stays
        valid for `cluster.heartbeat_interval`, because no process can be declared lost in that
        time.
        """
        now_s = self._drivers.clock.monotonic()
        if now_s < self._sure_until_s:
            return False
        if not self._is_current():
            return True
        self._sure_until_s = now_s + self._config.cluster.heartbeat_interval / 1000
        return False

    @foreign_translated()
    def clean_up(self) -> None:
        """Delete files and journal entries that no retained checkpoint needs."""
        journal = self._required_claim()
        retained = self._config.checkpoint.num_retained
        try:
            self._runner().run(clean_up(journal, self._cleanup, retained=retained))
            self._runner().run(truncate(journal))
        except StorageError as error:
            _log.warning("old files stay until the next checkpoint", extra={"error": str(error)})

    def _manifest(self, journal: ClaimedJournal, complete: PublishCheckpoint) -> Manifest:
        plan = self._required_plan()
        return Manifest(
            job=self._submission.job,
            checkpoint=complete.checkpoint,
            submission_id=self._submission.id,
            created_ms=self._drivers.clock.now_ms(),
            final=complete.final,
            kafka_cluster=journal.state.kafka_cluster,
            fingerprint=self._submission.fingerprint,
            plan=plan.state_metadata,
            subtasks=complete.snapshots,
            graph=plan.graph.describe(),
            duration_ms=complete.duration_ms,
        )

    def _runner(self) -> EffectRunner:
        """Return the runner. The first use creates it, in a worker thread, because a connection to
        Kafka takes time.
        """
        if self._effects is None:
            transactions = self._drivers.transaction_admin(self._config.kafka.client_settings())
            self._effects = EffectRunner(
                self.storage.store,
                transactions,
                self._drivers.clock,
                self._drivers.threads,
                nonce=lambda: self._drivers.entropy.token_hex(8),
                on_retry=self._on_retry,
                calls=self.storage.calls,
                sinks=self._sinks,
            )
        return self._effects

    def _required_plan(self) -> JobPlan:
        if self._plan is None:
            message = f"job {self._submission.job} restores or publishes without a plan"
            raise InternalError(message)
        return self._plan

    def _required_claim(self) -> ClaimedJournal:
        if self.claimed is None:
            message = f"job {self._submission.job} publishes without a claim"
            raise InternalError(message)
        return self.claimed
