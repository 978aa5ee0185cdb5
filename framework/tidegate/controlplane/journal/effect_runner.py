"""The runner that carries out the effects of the commit procedures with real drivers.

This is the only place where the procedures of `commit` meet storage and Kafka. `EffectRunner.run`
blocks, so the JobMaster calls it in a worker thread. One runner may run several procedures in
several threads at once, as far as `ClaimedJournal` allows. It does not know what a procedure means.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeVar

from tidegate.commit.effects import (
    ClusterId,
    CreateEntry,
    DeleteObject,
    Describe,
    Effect,
    EndTransaction,
    EpochEnds,
    Fence,
    Gather,
    ListObjects,
    ListTransactions,
    MonotonicTime,
    Nonce,
    Procedure,
    ReadObject,
    Sleep,
    TopicIds,
    WallClock,
    WriteObject,
)
from tidegate.controlplane.journal.sink_coordinators import SinkCoordinators
from tidegate.controlplane.journal.storage_calls import StorageCalls
from tidegate.errors import (
    ExternalError,
    InternalError,
    RefusedError,
    Retry,
    StorageError,
    TidegateError,
    foreign_translated,
)
from tidegate.ids import TransactionalId
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.ports.clock import Clock
from tidegate.ports.kafka import (
    EndTxnResult,
    TransactionAdmin,
    TransactionDescription,
    TransactionState,
)
from tidegate.ports.threads import Threads
from tidegate.ports.transactions import TransactionCoordinator

T = TypeVar("T")

GATHER_MAX: Final = 4
"""The most procedures that the `Gather` effects of one runner run at a time. This is as much as the
connection to the coordinators carries."""


class ProcedureStopped(ExternalError):
    """The caller asked for a stop. The procedure ended between two steps, as it would in a
    crash.
    """


def run_to_end() -> bool:
    """Return False, so that a procedure runs to its end."""
    return False


def ignore_retry(_error: TidegateError) -> None:
    """Ignore errors that will be retried."""


class EffectRunner:
    """A runner of procedures on one checkpoint storage, one Kafka cluster and the systems of other
    sinks.
    """

    def __init__(
        self,
        store: BlobStore,
        transactions: TransactionAdmin,
        clock: Clock,
        threads: Threads,
        *,
        nonce: Callable[[], str],
        on_retry: Callable[[TidegateError], None] = ignore_retry,
        calls: StorageCalls | None = None,
        sinks: SinkCoordinators | None = None,
    ) -> None:
        """Create the runner. `on_retry` is called with every error after which the same effect may
        be retried. Procedures retry for minutes, and their caller can then report the cause.
        `sinks` has the coordinators of transactions that are not Kafka's.
        """
        self._on_retry = on_retry
        self._calls = calls or StorageCalls(clock)
        self._transactions = transactions
        self._sinks = sinks
        self._cluster_id: str | None = None
        self._threads = threads
        self._gather_pool = threads.pool(GATHER_MAX, name="together")
        self._actions: dict[type, Callable[[Any], Any]] = {
            CreateEntry: lambda effect: store.create(effect.path, effect.data),
            ReadObject: lambda effect: store.get(effect.path),
            WriteObject: lambda effect: store.put(effect.path, effect.data),
            ListObjects: lambda effect: store.list(effect.prefix),
            DeleteObject: lambda effect: store.delete(effect.path),
            Describe: self._describe,
            EndTransaction: self._end,
            ClusterId: lambda _: self._ask_cluster(),
            ListTransactions: self._list,
            Fence: self._fence,
            TopicIds: lambda effect: transactions.topic_ids(effect.topics),
            EpochEnds: lambda effect: transactions.epoch_end_offsets(effect.epochs),
            Sleep: lambda effect: clock.sleep(effect.seconds),
            MonotonicTime: lambda _: float(clock.monotonic()),
            WallClock: lambda _: clock.now_ms(),
            Nonce: lambda _: nonce(),
            Gather: self._gather,
        }

    def close(self) -> None:
        """Close the connections and end the threads. No procedure may run any more."""
        self._gather_pool.shutdown(wait=False, cancel_futures=True)
        self._transactions.close()
        if self._sinks is not None:
            self._sinks.close()

    def run(self, procedure: Procedure[T], should_stop: Callable[[], bool] = run_to_end) -> T:
        """Run a procedure and return its result, or raise its error.

        If an effect fails with an error of tidegate, the error is thrown into the procedure, which
        may continue. A failure of the operating system is thrown as an error of tidegate.
        `should_stop` is called before every effect. ProcedureStopped if it returns True.
        """
        answer: Any = None
        failure: TidegateError | None = None
        while True:
            if should_stop():
                procedure.close()
                raise ProcedureStopped("Stopped between two steps of the commit protocol.")
            try:
                effect = procedure.send(answer) if failure is None else procedure.throw(failure)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, failure = None, None
            try:
                with foreign_translated():
                    answer = self.perform(effect)
                if answer is CreateResult.UNKNOWN:
                    self._on_retry(_unknown_outcome(effect))
            except TidegateError as error:
                if error.retry is Retry.BACKOFF:
                    self._on_retry(error)
                failure = error

    def perform(self, effect: Effect) -> Any:
        """Carry out one effect. Return the result that the effect's docstring specifies."""
        action = self._actions[type(effect)]
        match effect:
            case CreateEntry(path=path) | ReadObject(path=path) | WriteObject(path=path):
                target = path
            case DeleteObject(path=path) | ListObjects(prefix=path):
                target = path
            case _:
                return action(effect)
        with self._calls.during(f"{type(effect).__name__} {target}"):
            return action(effect)

    def _gather(self, effect: Gather) -> list[Any]:
        """Run procedures in parallel and return their results. If some fail, raise the error of the
        first of these, in the order of the procedures.
        """
        outcomes = self._threads.queue()

        def run(index: int, procedure: Procedure[Any]) -> None:
            try:
                outcomes.put((index, self.run(procedure), None))
            except BaseException as error:  # noqa: BLE001 - raised below, by who waits
                outcomes.put((index, None, error))

        for index, procedure in enumerate(effect.procedures):
            self._gather_pool.submit(partial(run, index, procedure))
        ended = sorted((outcomes.get() for _ in effect.procedures), key=itemgetter(0))
        for _, _, error in ended:
            if error is not None:
                raise error
        return [result for _, result, _ in ended]

    def _describe(self, effect: Describe) -> TransactionDescription | None:
        txn = effect.transaction
        coordinator = self._coordinator(txn.transactional_id)
        if coordinator is None:
            self._check_cluster(txn.cluster_id)
            return self._transactions.describe(txn.transactional_id)
        state = coordinator.describe(txn.transactional_id, txn.handle)
        if state is None:
            return None
        # The id and the handle identify the transaction, so the other fields are always equal.
        return TransactionDescription(
            state=state, producer_id=txn.producer_id, epoch=txn.epoch, start_ms=txn.start_ms
        )

    def _end(self, effect: EndTransaction) -> EndTxnResult:
        txn = effect.transaction
        coordinator = self._coordinator(txn.transactional_id)
        if coordinator is not None:
            return coordinator.end(txn.transactional_id, txn.handle, commit=effect.commit)
        self._check_cluster(txn.cluster_id)
        return self._transactions.end(
            txn.transactional_id, txn.producer_id, txn.epoch, commit=effect.commit
        )

    def _list(self, effect: ListTransactions) -> dict[TransactionalId, TransactionState]:
        found = self._transactions.list(effect.prefix, unfinished=effect.unfinished)
        if self._sinks is not None:
            found = found | self._sinks.list(effect.prefix, unfinished=effect.unfinished)
        return found

    def _fence(self, effect: Fence) -> None:
        coordinator = self._coordinator(effect.transactional_id)
        (self._transactions if coordinator is None else coordinator).fence(effect.transactional_id)

    def _coordinator(self, transactional_id: TransactionalId) -> TransactionCoordinator | None:
        return None if self._sinks is None else self._sinks.of(transactional_id)

    def _ask_cluster(self) -> str:
        self._cluster_id = self._transactions.cluster_id()
        return self._cluster_id

    def _check_cluster(self, cluster_id: str) -> None:
        """Raise RefusedError if `cluster_id` is not the Kafka cluster of this runner. The claim has
        already refused transactions of another cluster. This is the last check before a request
        that would find another transaction there, or none.
        """
        here = self._cluster_id or self._ask_cluster()
        if cluster_id != here:
            raise RefusedError(
                f"The job's last checkpoint names transactions on Kafka cluster {cluster_id}, but "
                f"kafka.bootstrap_servers is Kafka cluster {here}. Set it to brokers of "
                f"{cluster_id}, so that these transactions can be committed."
            )


def _unknown_outcome(effect: Effect) -> StorageError:
    path = effect.path if isinstance(effect, CreateEntry) else ""
    return StorageError(
        f"The checkpoint storage does not say whether {path} was written. Check that it is "
        "reachable and has space."
    )


def run_read_only(store: BlobStore, procedure: Procedure[T]) -> T:
    """Run a procedure that only reads the checkpoint storage. This needs no Kafka. InternalError if
    the procedure asks for another effect.
    """
    answer: bytes | list[str] | None = None
    while True:
        try:
            effect = procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        match effect:
            case ReadObject():
                answer = store.get(effect.path)
            case ListObjects():
                answer = store.list(effect.prefix)
            case _:
                message = f"a procedure that reads asked for {type(effect).__name__}"
                raise InternalError(message)
