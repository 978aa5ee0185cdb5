"""The journal thread of a JobMaster: everything of a job that touches its journal, in order.

One thread runs recovery, publication, commit and the close in the order in which they were asked
for: a recovery waits for a publication whose outcome is not known yet, and then finds it.
`job_journal.py` does the work; this module carries results back to the loop. The sweep writes
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
from tidegate.controlplane.jobmaster.effect_runner import ignore_retry
from tidegate.controlplane.jobmaster.job_journal import JobJournal
from tidegate.controlplane.jobmaster.job_plan import (
    JobPlan,
)
from tidegate.controlplane.jobmaster.job_storage import JobStorage
from tidegate.controlplane.jobmaster.recovered_job import RecoveredJob
from tidegate.errors import (
    InternalError,
    KafkaError,
    OutcomeUnknownError,
    StorageError,
    TidegateError,
)
from tidegate.ids import Attempt
from tidegate.ports.drivers import Drivers
from tidegate.protocol.messages import Submission
from tidegate.protocol.snapshots import PreparedTransaction

Action = Callable[[], None]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationOutcome:
    """What is called, in the loop, as a publication goes on; `failed` ends the attempt.

    `committed` gets the transactions that have ended, and those whose ids may be used again.
    """

    published: Callable[[], None]
    not_published: Callable[[str], None]
    committed: Callable[[tuple[PreparedTransaction, ...], tuple[PreparedTransaction, ...]], None]
    failed: Callable[[TidegateError], None]


class JournalWorker:
    """The journal thread of one JobMaster. Methods return at once; outcomes are posted."""

    def __init__(
        self,
        submission: Submission,
        config: Config,
        drivers: Drivers,
        post: Callable[[Action], None],
        trouble: Callable[[TidegateError], None] = ignore_retry,
        *,
        storage: str = "",
        wanted: Callable[[], bool],
    ) -> None:
        """`trouble` is called, in the loop, with what stands in the way of work that is tried
        again: brokers that do not answer, a storage that fails. `wanted` asks whether this process
        is still the job's JobMaster. `storage` is the id of the checkpoint storage, where the
        JobManager knows it.
        """
        self._post = post
        self.journal = JobJournal(
            submission,
            config,
            drivers,
            storage=storage,
            wanted=wanted,
            trouble=lambda error: post(lambda: trouble(error)),
        )
        self._thread = drivers.threads.pool(1, name="journal")
        self._sweeper = drivers.threads.pool(1, name="sweep")
        self._sweeping = False
        #: Publications asked for before this many attempts had ended are not begun any more.
        self._generation = 0

    @property
    def storage(self) -> JobStorage:
        """The checkpoint storage of the job."""
        return self.journal.storage

    def fetch_code(self, done: Callable[[Path | TidegateError | None], None]) -> None:
        """Fetch the code of the job to this host, as soon as its storage is there. Not in the loop:
        a storage that hangs must not silence the process.
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
        """Claim, then settle, fence and resolve what is restored.

        Without a plan, because of an error, only what needs no user code is done. Then `done` gets
        that error, unless the final checkpoint is published already.
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
        """Whether the job is still this attempt's, before its slots begin. Where the storage does
        not say they begin: what they write is safe without the answer.
        """

        def work() -> None:
            failure: TidegateError | None = None
            try:
                self.journal.check_ownership()
            except StorageError as error:
                _log.warning("whose the job is was not seen", extra={"error": str(error)})
            except TidegateError as error:
                failure = error
            self._post(lambda: done(failure))

        self._submit(work)

    def publish(
        self, complete: PublishCheckpoint, outcome: PublicationOutcome, *, stopped: bool = False
    ) -> None:
        """Publish a checkpoint; then end and settle what it names."""
        generation = self._generation

        def given_up() -> bool:
            return generation != self._generation

        def work() -> None:
            if not given_up():
                self._publish(complete, outcome, stopped=stopped, given_up=given_up)

        self._submit(work)

    def abandon(self) -> None:
        """The attempt is over: a publication that has not begun never does, and one that asks Kafka
        in vain fails.
        """
        self._generation += 1

    def fence_zombies(self) -> None:
        """Fence what zombies of older attempts have opened since; failures wait for the next
        one. Does nothing while one is under way: without a broker each takes longer than the time
        to the next, and they would pile up.
        """
        if self.journal.claimed is None or self._sweeping:
            return
        self._sweeping = True

        def work() -> None:
            try:
                fenced = self.journal.fence_zombies()
            except InternalError:
                raise  # repeating it would hide a bug
            except TidegateError as error:
                _log.warning("the sweep failed and is repeated", extra={"error": str(error)})
                return
            finally:
                self._sweeping = False
            if fenced:
                _log.warning("fenced transactions of older attempts", extra={"ids": list(fenced)})

        self._sweeper.submit(self._report_errors(work))

    def close(
        self, outcome: str, stopped: str, done: Callable[[TidegateError | None], None]
    ) -> None:
        """Settle, fence, close the journal."""

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
        outcome: PublicationOutcome,
        *,
        stopped: bool,
        given_up: Callable[[], bool],
    ) -> None:
        claimed, post = self.journal.claimed, self._post
        if claimed is None or claimed.attempt != complete.checkpoint.attempt:
            return  # the attempt ended while this waited
        try:
            freed = self.journal.publish(complete, stopped=stopped, given_up=given_up)
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
            ended, settled = self.journal.commit()
        except TidegateError as error:
            _fail(post, outcome, error)
            return
        post(lambda: outcome.committed(ended, (*freed, *settled)))
        try:
            self.journal.clean_up()
        except TidegateError as error:
            _fail(post, outcome, error)

    def _submit(self, work: Action) -> None:
        self._thread.submit(self._report_errors(work))

    def _report_errors(self, work: Action) -> Action:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - a bug: it must end the process
                self._post(partial(_raise, error))

        return guarded


def _fail(
    post: Callable[[Action], None], outcome: PublicationOutcome, error: TidegateError
) -> None:
    post(lambda: outcome.failed(error))


def _raise(error: BaseException) -> None:
    raise error
