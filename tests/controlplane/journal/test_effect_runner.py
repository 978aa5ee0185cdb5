"""The shell that carries effects out: every effect reaches its driver, failures reach the
procedure."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import msgspec
import pytest

from tidegate.commit import effects
from tidegate.commit.claim import claim
from tidegate.commit.effects import Effect, Procedure
from tidegate.controlplane.journal.effect_runner import EffectRunner, ProcedureStopped
from tidegate.drivers.storage import open_store
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import KafkaUnavailableError, RefusedError, StorageError, TidegateError
from tidegate.ids import JobName, TransactionalId
from tidegate.ports.blobs import CreateResult
from tidegate.ports.kafka import EndTxnResult, TransactionAdmin
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import TopicPartition

TID = TransactionalId("tidegate.job.j.sink.1.0.0")


class Clock:
    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return 7 + sum(self.slept)

    def now_ms(self) -> int:
        return 8

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


class Log:
    """Records calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def cluster_id(self) -> str:
        return "c1"

    def describe(self, transactional_id: TransactionalId) -> None:
        self.calls.append(("describe", transactional_id))

    def end(self, *transaction: object, commit: bool) -> EndTxnResult:
        self.calls.append(("end", *transaction, commit))
        return EndTxnResult.RETRY

    def fence(self, transactional_id: TransactionalId) -> None:
        self.calls.append(("fence", transactional_id))

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        self.calls.append(("topics", *topics))
        return {}

    def epoch_end_offsets(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.calls.append(("epochs", *epochs.items()))
        return {}

    def list(self, prefix: str, *, unfinished: bool = False) -> dict[TransactionalId, str]:
        self.calls.append(("list", prefix))
        return {}


def runner(log: Log | None = None, clock: Clock | None = None, **more: Any) -> EffectRunner:
    transactions = cast("TransactionAdmin", log or Log())
    return EffectRunner(
        open_store("memory:///"),
        transactions,
        clock or Clock(),
        SystemThreads(),
        nonce=lambda: "n",
        **more,
    )


def txn(cluster_id: str = "c1") -> PreparedTransaction:
    return PreparedTransaction(
        cluster_id=cluster_id, transactional_id=TID, producer_id=3, epoch=4, start_ms=5
    )


def test_every_kind_of_effect_reaches_its_driver() -> None:
    log, clock = Log(), Clock()
    run = runner(log, clock)
    answers: list[tuple[Effect, object]] = [
        (effects.CreateEntry(path="a/b", data=b"1"), CreateResult.CREATED),
        (effects.CreateEntry(path="a/b", data=b"1"), CreateResult.EXISTS),
        (effects.WriteObject(path="a/c", data=b"2"), None),
        (effects.ReadObject(path="a/c"), b"2"),
        (effects.ListObjects(prefix="a"), ["a/b", "a/c"]),
        (effects.DeleteObject(path="a/c"), None),
        (effects.ReadObject(path="a/c"), None),
        (effects.Describe(transaction=txn()), None),
        (effects.EndTransaction(transaction=txn()), EndTxnResult.RETRY),
        (effects.ClusterId(), "c1"),
        (effects.ListTransactions(prefix="p"), {}),
        (effects.Fence(transactional_id=TID), None),
        (effects.TopicIds(topics=frozenset({"t"})), {}),
        (effects.EpochEnds(epochs={TopicPartition("t", 0): 3}), {}),
        (effects.Sleep(seconds=0.5), None),
        (effects.MonotonicTime(), 7.5),
        (effects.WallClock(), 8),
        (effects.Nonce(), "n"),
        (effects.Gather(procedures=(effects.nonce(), effects.now())), ["n", 7.5]),
    ]
    for effect, answer in answers:
        assert run.perform(effect) == answer
    assert {type(effect) for effect, _ in answers} == set(get_args(Effect))
    assert log.calls == [
        ("describe", TID),
        ("end", TID, 3, 4, True),
        ("list", "p"),
        ("fence", TID),
        ("topics", "t"),
        ("epochs", (("t", 0), 3)),
    ]
    assert clock.slept == [0.5]


def test_a_create_without_an_answer_is_reported_as_a_failure_of_the_storage() -> None:
    def procedure() -> Procedure[CreateResult]:
        return (yield from effects.create_entry("a/b", b"1"))

    failures: list[TidegateError] = []
    store = cast("Any", SimpleNamespace(create=lambda path, data: CreateResult.UNKNOWN))
    run = EffectRunner(
        store,
        cast("TransactionAdmin", Log()),
        Clock(),
        SystemThreads(),
        nonce=lambda: "n",
        on_retry=failures.append,
    )
    assert run.run(procedure()) is CreateResult.UNKNOWN
    (failure,) = failures
    assert "does not say whether a/b was written" in str(failure)


@pytest.mark.parametrize(
    "effect",
    [
        effects.Describe(transaction=txn("c2")),
        effects.EndTransaction(transaction=txn("c2")),
    ],
)
def test_transaction_effect_on_another_kafka_cluster_is_refused(effect: Effect) -> None:
    log = Log()
    with pytest.raises(RefusedError, match=r"names transactions on Kafka cluster c2.*cluster c1"):
        runner(log).perform(effect)
    assert log.calls == []


def test_a_failed_effect_is_thrown_into_the_procedure() -> None:
    class Away(Log):
        def fence(self, transactional_id: TransactionalId) -> None:
            raise KafkaUnavailableError("away")

    def procedure() -> Procedure[str]:
        try:
            yield from effects.fence(TID)
        except KafkaUnavailableError as error:
            return f"caught {error}, then {(yield from effects.nonce())}"
        return "not raised"

    def careless() -> Procedure[None]:
        yield from effects.fence(TID)

    assert runner(Away()).run(procedure()) == "caught away, then n"
    with pytest.raises(KafkaUnavailableError):
        runner(Away()).run(careless())


class Meeting(Log):
    """A transaction log that answers only after two requests have come."""

    def __init__(self) -> None:
        super().__init__()
        self.both = threading.Barrier(2, timeout=30)

    def end(self, *transaction: object, commit: bool) -> EndTxnResult:
        self.both.wait()
        if str(transaction[0]).endswith(".1"):
            raise KafkaUnavailableError(f"{transaction[0]} is away")
        return EndTxnResult.ACCEPTED


def ending(slot: int) -> Procedure[EndTxnResult]:
    return effects.end_transaction(
        msgspec.structs.replace(txn(), transactional_id=TransactionalId(f"{TID}.{slot}"))
    )


def test_gathered_procedures_run_concurrently_and_return_in_order() -> None:
    def named(slot: int) -> Procedure[tuple[int, EndTxnResult]]:
        return slot, (yield from ending(slot))

    ends = runner(Meeting()).run(effects.gather([named(0), named(2)]))
    assert ends == [(0, EndTxnResult.ACCEPTED), (2, EndTxnResult.ACCEPTED)]


def test_gathered_procedures_all_run_to_their_end_and_the_first_error_is_raised() -> None:
    done: list[str] = []

    def slow(name: str) -> Procedure[None]:
        yield from ending(0)
        for _ in range(50):
            yield from effects.nonce()
        done.append(name)
        raise RefusedError(name)

    def procedure() -> Procedure[object]:
        try:
            return (yield from effects.gather([ending(1), slow("slow"), slow("too"), ending(1)]))
        except KafkaUnavailableError as error:
            return str(error)

    assert runner(Meeting()).run(procedure()) == f"{TID}.1 is away"
    assert sorted(done) == ["slow", "too"]


def test_a_procedure_runs_on_a_real_folder(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    run = EffectRunner(
        store, cast("TransactionAdmin", Log()), Clock(), SystemThreads(), nonce=lambda: "nonce"
    )
    attempts = [run.run(claim(JobName("job"), submission_id="s")).attempt for _ in range(3)]
    assert attempts == [1, 2, 3]
    assert store.list("job") == [f"job/journal/{n:020d}.json" for n in (1, 2, 3)]


def test_stopped_procedure_is_closed_at_its_current_effect_without_an_error() -> None:
    seen: list[str] = []

    def procedure() -> Procedure[None]:
        try:
            while True:
                yield from effects.pause(0.1)
        except StorageError:
            seen.append("an error, which it is not")
        finally:
            seen.append("closed")

    clock = Clock()
    run = runner(clock=clock)
    with pytest.raises(ProcedureStopped):
        run.run(procedure(), should_stop=lambda: len(clock.slept) >= 3)
    assert seen == ["closed"]
    assert len(clock.slept) == 3


def test_retryable_errors_are_reported_and_other_errors_are_not() -> None:
    class Away(Log):
        def describe(self, transactional_id: TransactionalId) -> None:
            raise KafkaUnavailableError("no broker of here answers")

        def fence(self, transactional_id: TransactionalId) -> None:
            raise RefusedError("never")

    def procedure() -> Procedure[str]:
        describe = effects.Describe(transaction=txn())
        for effect in (describe, effects.Fence(transactional_id=TID)):
            with contextlib.suppress(KafkaUnavailableError, RefusedError):
                yield effect
        return "done"

    told: list[object] = []
    runner = EffectRunner(
        open_store("memory:///"),
        cast("TransactionAdmin", Away()),
        cast("Any", Clock()),
        SystemThreads(),
        nonce=lambda: "n",
        on_retry=lambda error: told.append(str(error)),
    )
    assert runner.run(procedure()) == "done"
    assert told == ["no broker of here answers"]
