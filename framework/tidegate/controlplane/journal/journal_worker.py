"""The journal thread of a JobMaster, which runs all work on the job's journal in order.

One thread runs recovery, publication, commit and the close in the order of the requests. So a
recovery waits for a publication whose outcome is not known yet, and then finds its entry.
`job_journal.py` does the work, and this module posts the results to the loop. The sweep writes
nothing and has a thread of its own. A bug in either thread is raised in the loop and ends the
process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tidegate.checkpoint.coordinator_events import PublishCheckpoint
from tidegate.config import Config
from tidegate.controlplane.journal.effect_runner import ignore_retry
from tidegate.controlplane.journal.job_journal import JobJournal
from tidegate.controlplane.journal.job_plan import (
    JobPlan,
)
from tidegate.controlplane.journal.job_storage import JobStorage
from tidegate.controlplane.journal.recovered_job import RecoveredJob
from tidegate.errors import (
    InternalError,
    StorageError,
    TidegateError,
    TransactionSystemError,
)
from tidegate.ids import Attempt, CheckpointId
from tidegate.ports.drivers import Drivers
from tidegate.protocol.submission import Submission
from tidegate.protocol.subtask_snapshot import PreparedTransaction

Action = Callable[[], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished:
    """The checkpoint is in the journal. `CheckpointCommitted` or `PublicationFailed` follows."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointNotPublished:
    """The checkpoint is not in the journal and never will be. The attempt continues."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """The transactions that the published checkpoint lists have ended."""

    checkpoint: CheckpointId
    final: bool
    committed: tuple[PreparedTransaction, ...]
    """The transactions for which Kafka has reported CompleteCommit."""
    reusable: tuple[PreparedTransaction, ...]
    """The transactions that the journal no longer lists. Their ids may be used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationFailed:
    """The publication, its commit or the cleanup after it failed. The attempt cannot continue."""

    error: TidegateError


PublicationEvent = (
    CheckpointPublished | CheckpointNotPublished | CheckpointCommitted | PublicationFailed
)


class JournalWorker:
    """The journal thread of one JobMaster. Methods return at once; outcomes are posted."""

    def __init__(
        self,
        submission: Submission,
        config: Config,
        drivers: Drivers,
        post: Callable[[Action], None],
        on_retry: Callable[[TidegateError], None] = ignore_retry,
        *,
        storage: str = "",
        wanted: Callable[[], bool],
    ) -> None:
        """Create the threads. `on_retry` is called, in the loop, with each error of work that is
        retried: brokers do not answer, or the storage fails. `wanted` returns whether this
        process is still the job's JobMaster. `storage` is the id of the checkpoint storage if the
        JobManager knows it, else empty.
        """
        self._post = post
        self.journal = JobJournal(
            submission,
            config,
            drivers,
            storage=storage,
            wanted=wanted,
            on_retry=lambda error: post(lambda: on_retry(error)),
        )
        self._thread = drivers.threads.pool(1, name="journal")
        self._zombie_fencing_pool = drivers.threads.pool(1, name="sweep")
        self._is_fencing_zombies = False
        #: The number of attempts that have ended. A publication that was requested at a lower
        #: number does not begin any more.
        self._generation = 0

    @property
    def storage(self) -> JobStorage:
        """The checkpoint storage of the job."""
        return self.journal.storage

    def fetch_code(self, done: Callable[[Path | TidegateError | None], None]) -> None:
        """Fetch the code of the job to this host, as soon as its storage is there. This does not
        run in the loop, because a storage that hangs must not silence the process.
        """

        def work() -> None:
            found = self.journal.fetch_code()
            self._post(lambda: done(found))

        self._submit(work)

    def recover(
        self,
        plan: JobPlan | TidegateError,
        claimed: Callable[[Attempt], None],
        done: Callable[[RecoveredJob | TidegateError], None],
    ) -> None:
        """Claim, settle and fence, then resolve the state to restore.

        If `plan` is an error, only the work that needs no user code is done. Then `done` receives
        that error, unless the final checkpoint is already published.
        """

        def announce(attempt: Attempt) -> None:
            self._post(lambda: claimed(attempt))

        def work() -> None:
            try:
                outcome: RecoveredJob | TidegateError = self.journal.recover(plan, announce)
            except TidegateError as error:
                outcome = error
            self._post(lambda: done(outcome))

        self._submit(work)

    def check_ownership(self, done: Callable[[TidegateError | None], None]) -> None:
        """Check, before the slots start, that the job still belongs to this attempt. `done`
        receives the error, or None. If the storage does not answer, `done` receives None and the
        slots start, because their output is safe without the check.
        """

        def work() -> None:
            failure: TidegateError | None = None
            try:
                self.journal.check_ownership()
            except StorageError as error:
                _log.warning(
                    "could not check that this attempt still owns the job; deploying",
                    extra={"error": str(error)},
                )
            except TidegateError as error:
                failure = error
            self._post(lambda: done(failure))

        self._submit(work)

    def publish(
        self,
        complete: PublishCheckpoint,
        handle: Callable[[PublicationEvent], None],
        *,
        stopped: bool = False,
    ) -> None:
        """Publish a checkpoint, then commit and settle the transactions that it lists. `handle`
        receives the events. An event may come after `abandon`, because the publication had begun.
        """
        generation = self._generation

        def is_canceled() -> bool:
            return generation != self._generation

        def report(event: PublicationEvent) -> None:
            self._post(lambda: handle(event))

        def work() -> None:
            if not is_canceled():
                self._publish(complete, report, stopped=stopped, is_canceled=is_canceled)

        self._submit(work)

    def abandon(self) -> None:
        """End the publications of the attempt, because it is over. A publication that has not begun
        is dropped. A publication that repeats a request to Kafka without an answer fails.
        """
        self._generation += 1

    def fence_zombies(self) -> None:
        """Fence transactions that zombies of older attempts have opened since. If this sweep fails,
        the next one retries. Do nothing while a sweep is running. Without a broker each sweep
        takes longer than the time to the next one, so they would pile up.
        """
        if self.journal.claimed is None or self._is_fencing_zombies:
            return
        self._is_fencing_zombies = True

        def work() -> None:
            try:
                fenced = self.journal.fence_zombies()
            except InternalError:
                raise  # repeating it would hide a bug
            except TidegateError as error:
                _log.warning("the sweep failed and is repeated", extra={"error": str(error)})
                return
            finally:
                self._is_fencing_zombies = False
            if fenced:
                _log.warning("fenced transactions of older attempts", extra={"ids": list(fenced)})

        self._zombie_fencing_pool.submit(self._report_errors(work))

    def close(
        self, outcome: str, stopped: str, done: Callable[[TidegateError | None], None]
    ) -> None:
        """Settle, fence, and close the journal. `done` receives the error, or None."""

        def work() -> None:
            failure: TidegateError | None = None
            try:
                self.journal.close(outcome, stopped)
            except TidegateError as error:
                _log.warning("the journal could not be closed", extra={"error": str(error)})
                failure = error
            self._post(lambda: done(failure))

        self._submit(work)

    def _publish(
        self,
        complete: PublishCheckpoint,
        report: Callable[[PublicationEvent], None],
        *,
        stopped: bool,
        is_canceled: Callable[[], bool],
    ) -> None:
        claimed, checkpoint = self.journal.claimed, complete.checkpoint
        if claimed is None or claimed.attempt != checkpoint.attempt:
            return  # the attempt ended while this waited
        try:
            reusable = self.journal.publish(complete, stopped=stopped, is_canceled=is_canceled)
        except (StorageError, TransactionSystemError) as error:
            report(CheckpointNotPublished(checkpoint=checkpoint, reason=str(error)))
            return
        except TidegateError as error:
            report(PublicationFailed(error=error))
            return
        report(CheckpointPublished(checkpoint=checkpoint))
        try:
            committed, settled = self.journal.commit()
        except TidegateError as error:
            report(PublicationFailed(error=error))
            return
        report(
            CheckpointCommitted(
                checkpoint=checkpoint,
                final=complete.final,
                committed=committed,
                reusable=(*reusable, *settled),
            )
        )
        try:
            self.journal.clean_up()
        except TidegateError as error:
            report(PublicationFailed(error=error))

    def _submit(self, work: Action) -> None:
        self._thread.submit(self._report_errors(work))

    def _report_errors(self, work: Action) -> Action:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - a bug: it must end the process
                self._post(partial(_raise, error))

        return guarded


def _raise(error: BaseException) -> None:
    raise error
