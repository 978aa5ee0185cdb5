"""The sink's writer against a broker double: order across barriers, what is named, what waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dataplane.sinks.doubles import Broker
from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_records import ProducerRecord
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.records.formats import Json, Raw, Utf8
from tidegate.dataplane.sinks import kafka as writer_module
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.errors import TransactionError, UserCodeError
from tidegate.ids import Attempt, CheckpointId, TransactionalId, Uid
from tidegate.ports.kafka import TransactionState
from tidegate.protocol.subtask_snapshot import PreparedTransaction
from tidegate.stream_elements import RecordBatch, TopicPartition


def batch(*values: Any, first: int = 0) -> RecordBatch:
    return RecordBatch(
        values=list(values),
        offsets=list(range(first, first + len(values))),
        topic_partition=TopicPartition("in", 3),
    )


class Bench:
    def __init__(self, sink: KafkaSink[Any] | None = None, *, pooled: int = 2, slots: int = 8):
        self.broker = Broker()
        self.harness = SubtaskHarness(self.broker, self.broker, pooled=pooled, slots=slots)
        self.sink = sink or KafkaSink("out", value=Raw())
        self.writer = KafkaSinkWriter(self.sink, Uid("out"), self.harness.context)
        self.acks: dict[int, tuple[PreparedTransaction, ...]] = {}
        self.writer.open()

    def prepare(self, number: int, *, final: bool = False) -> None:
        def done(found: tuple[PreparedTransaction, ...]) -> None:
            assert number not in self.acks
            self.acks[number] = found

        self.writer.prepare(CheckpointId(Attempt(1), number), done, final=final)

    def posted(self) -> None:
        self.harness.mailbox.run_posted()

    def values(self) -> list[object]:
        return [record[1] for _, record in self.broker.log if isinstance(record, tuple)]


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.harness.run_until_idle()
    return bench


def test_records_of_a_checkpoint_interval_are_one_transaction_in_the_acknowledgement(
    bench: Bench,
) -> None:
    bench.writer.write(batch(b"a", b"b"))
    bench.prepare(1)
    bench.harness.run_until_idle()
    (named,) = bench.acks[1]
    assert named.transactional_id == "tidegate.job.j1.out.1.0.0"
    found = bench.broker.transactions[named.transactional_id]
    assert (named.producer_id, named.epoch, named.start_ms) == (found.producer_id, 0, 1)
    assert found.records == [("out", b"a", None), ("out", b"b", None)]
    assert bench.writer.sent() == 2
    assert bench.harness.counters.records_out == 2


def test_interval_without_records_uses_no_transaction_and_no_producer(
    bench: Bench,
) -> None:
    before = list(bench.broker.initialised)
    for number in (1, 2, 3):
        bench.prepare(number)
    bench.harness.run_until_idle()
    assert bench.acks == {1: (), 2: (), 3: ()}
    assert bench.broker.initialised == before


def test_each_checkpoint_interval_has_its_own_producer(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.writer.write(batch(b"%d" % number))
        bench.prepare(number)
        bench.harness.run_until_idle()
    owners = [name for name, _ in bench.broker.log]
    assert len(set(owners)) == 3


def test_next_transaction_gets_no_record_before_the_flush_has_returned(
    bench: Bench,
) -> None:
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    bench.writer.write(batch(b"b"))
    bench.posted()
    assert bench.values() == [b"a"]
    bench.harness.run_until_idle()
    assert bench.values() == [b"a", b"b"]


def test_barriers_pass_while_a_flush_is_under_way_and_are_answered_in_order(bench: Bench) -> None:
    for number in (1, 2, 3):
        bench.writer.write(batch(b"%d" % number))
        bench.prepare(number)
    assert bench.values() == [b"1"]
    bench.harness.run_until_idle()
    assert bench.values() == [b"1", b"2", b"3"]
    assert list(bench.acks) == [1, 2, 3]
    assert [len(bench.acks[number]) for number in (1, 2, 3)] == [1, 2, 3]


def _function_name(action: Any) -> str:
    return str(action.func.__name__)


def _preparation(bench: Bench) -> Any:
    """The waiting I/O action that flushes and describes."""
    return next(action for action in bench.harness.io if _function_name(action) == "_prepare")


def test_acknowledgement_never_lists_a_transaction_opened_after_the_barrier(
    bench: Bench,
) -> None:
    """Describe of the later interval returns first."""
    bench.writer.write(batch(b"1"))
    bench.prepare(1)
    bench.writer.write(batch(b"2"))
    bench.prepare(2)
    posted: list[Any] = []
    bench.harness.context.post = posted.append  # the outcomes wait until the test delivers them
    (_, *others) = bench.harness.io
    first = _preparation(bench)
    bench.harness.io = [*others]
    if first in bench.harness.io:
        bench.harness.io.remove(first)
    first()
    flushed, first_described = posted
    posted.clear()
    flushed()
    second = _preparation(bench)
    second()
    _, second_described = posted
    posted.clear()
    second_described()
    assert posted == []
    first_described()
    for action in posted:
        action()
    assert [len(bench.acks[number]) for number in (1, 2)] == [1, 2]
    assert bench.acks[1] == bench.acks[2][:1]


def test_prepared_transaction_is_listed_in_each_acknowledgement_until_it_ended(
    bench: Bench,
) -> None:
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    bench.harness.run_until_idle()
    bench.prepare(2)
    bench.harness.run_until_idle()
    assert bench.acks[2] == bench.acks[1]
    names = [each.transactional_id for each in bench.acks[1]]
    bench.writer.ended([*names, TransactionalId("tidegate.job.j1.other.1.0.0")])
    bench.prepare(3)
    bench.harness.run_until_idle()
    assert bench.acks[3] == ()


def test_transactional_id_is_initialised_again_only_after_it_was_released() -> None:
    bench = Bench(pooled=1, slots=2)
    bench.harness.run_until_idle()
    names = []
    for number in (1, 2):
        assert bench.writer.writable()
        bench.writer.write(batch(b"x"))
        bench.prepare(number)
        bench.harness.run_until_idle()
        names.append(bench.acks[number][-1].transactional_id)
    assert not bench.writer.writable(), "no slot is left, so nothing may pile up"
    bench.prepare(3)
    bench.harness.run_until_idle()
    assert len(bench.acks[3]) == 2, "a sink that waits for a slot lets barriers through"
    bench.writer.ended(names)
    bench.prepare(4)
    bench.harness.run_until_idle()
    assert bench.acks[4] == ()
    assert len(bench.broker.initialised) == 2
    assert not bench.writer.writable()
    bench.writer.freed(names[:1])
    assert bench.writer.writable()
    bench.harness.run_until_idle()
    assert bench.broker.initialised == [*names, names[0]]


def test_records_wait_for_a_producer_that_is_being_created() -> None:
    bench = Bench()
    assert bench.writer.writable()
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    assert bench.acks == {}
    bench.harness.run_until_idle()
    assert bench.values() == [b"a"]
    assert len(bench.acks[1]) == 1


def test_writer_is_not_writable_above_the_limit_of_buffered_records(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BUFFERED_RECORDS_MAX", 3)
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    bench.writer.write(batch(b"b", b"c"))
    assert bench.writer.writable()
    bench.writer.write(batch(b"d"))
    assert not bench.writer.writable()
    bench.harness.run_until_idle()
    assert bench.writer.writable()
    assert bench.values() == [b"a", b"b", b"c", b"d"]


def test_writer_is_not_writable_above_the_limit_of_buffered_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "BUFFERED_BYTES_MAX", 1000)
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    bench.writer.write(batch(b"b" * 800))
    assert bench.writer.writable()
    bench.writer.write(batch(b"b" * 800))
    assert not bench.writer.writable()


def test_failed_flush_fails_the_attempt_and_acknowledges_no_checkpoint(bench: Bench) -> None:
    bench.writer.write(batch(b"a"))
    bench.broker.producers[0].failure = "record too large"
    bench.prepare(1)
    bench.harness.run_until_idle()
    assert [str(each) for each in bench.harness.failures] == ["record too large"]
    assert bench.acks == {}


def test_a_flush_that_failed_is_not_tried_again(bench: Bench) -> None:
    """After a fatal error librdkafka's flush reports success: the second would hide a loss."""
    bench.writer.write(batch(b"a"))
    tried: list[float] = []

    def flush(timeout_s: float) -> None:
        tried.append(timeout_s)
        if len(tried) == 1:
            raise TransactionError("fenced")

    bench.broker.producers[0].flush = flush  # type: ignore[method-assign]
    bench.prepare(1)
    bench.harness.run_until_idle()
    assert len(tried) == 1
    assert [str(each) for each in bench.harness.failures] == ["fenced"]
    assert bench.acks == {}


@pytest.mark.parametrize(
    ("state", "epoch"),
    [(TransactionState.COMPLETE_ABORT, 0), (TransactionState.ONGOING, 1), (None, 0)],
)
def test_transaction_with_an_unexpected_state_or_epoch_fails_the_attempt(
    bench: Bench, state: TransactionState | None, epoch: int
) -> None:
    bench.writer.write(batch(b"a"))
    name = TransactionalId("tidegate.job.j1.out.1.0.0")
    if state is None:
        del bench.broker.transactions[name]
    else:
        bench.broker.transactions[name].state = state
        bench.broker.transactions[name].epoch = epoch
    bench.prepare(1)
    bench.harness.run_until_idle()
    assert bench.acks == {}
    (failure,) = bench.harness.failures
    assert isinstance(failure, TransactionError)
    assert name in str(failure)


def test_transactional_id_that_the_broker_does_not_know_after_init_fails_the_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(pooled=1)
    monkeypatch.setattr(bench.broker, "describe", lambda _: None)
    bench.harness.run_until_idle()
    assert isinstance(bench.harness.failures[0], TransactionError)


def test_producer_that_was_idle_for_a_day_is_created_again(bench: Bench) -> None:
    assert len(bench.broker.initialised) == 2
    bench.broker.now_s += 86_401
    bench.prepare(1)
    bench.writer.write(batch(b"a"))
    bench.harness.run_until_idle()
    first = bench.broker.initialised[0]
    assert bench.broker.initialised.count(first) == 2
    assert bench.broker.transactions[first].epoch == 1
    assert bench.values() == [b"a"]


@pytest.mark.parametrize("last", [(), (b"b",)], ids=["an empty interval", "records"])
def test_final_barrier_flushes_a_producer_with_guarantee_none(last: tuple[bytes, ...]) -> None:
    """Records that a producer holds are lost when its process ends. A job that ends in order loses
    none.
    """
    bench = Bench(KafkaSink("out", value=Raw(), guarantee="none"))
    bench.harness.run_until_idle()
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    bench.harness.run_until_idle()
    if last:
        bench.writer.write(batch(*last))
    (producer,) = bench.broker.producers
    assert producer.flushes == 0
    bench.prepare(2, final=True)
    bench.posted()
    assert list(bench.acks) == [1]
    bench.harness.run_until_idle()
    assert producer.flushes == 1
    assert bench.acks == {1: (), 2: ()}


@pytest.mark.parametrize(("guarantee", "flushes"), [("at_least_once", 2), ("none", 0)])
def test_weaker_guarantees_acknowledge_without_transactions(guarantee: Any, flushes: int) -> None:
    bench = Bench(KafkaSink("out", value=Raw(), guarantee=guarantee))
    bench.writer.write(batch(b"a"))
    bench.prepare(1)
    bench.writer.write(batch(b"b"))
    bench.prepare(2)
    assert bench.acks == {}, "even so, a barrier is answered only when all before it is sent"
    bench.harness.run_until_idle()
    assert bench.acks == {1: (), 2: ()}
    assert bench.broker.initialised == []
    (producer,) = bench.broker.producers
    assert producer.flushes == flushes
    producer.failure = "gone"
    with pytest.raises(TransactionError, match="gone"):
        bench.writer.write(batch(b"c"))


@pytest.mark.parametrize("wrong", [5, "text", None])
def test_raw_format_refuses_values_that_are_not_bytes(bench: Bench, wrong: Any) -> None:
    with pytest.raises(UserCodeError, match="takes bytes"):
        bench.writer.write(batch(b"fine", wrong))


def test_record_key_function_gives_the_keys_of_written_records() -> None:
    sink = KafkaSink("out", value=Json(dict[str, int]), record_key=lambda value: str(value["id"]))
    bench = Bench(sink)
    bench.harness.run_until_idle()
    bench.writer.write(batch({"id": 1}, {"id": 2}))
    assert [record for _, record in bench.broker.log] == [
        ("out", b'{"id":1}', b"1"),
        ("out", b'{"id":2}', b"2"),
    ]


def test_writer_keeps_source_keys_that_the_batch_carries(bench: Bench) -> None:
    carried = batch(b"a", b"b")
    carried.keys = [b"k", None]
    bench.writer.write(carried)
    assert [record for _, record in bench.broker.log] == [
        ("out", b"a", b"k"),
        ("out", b"b", None),
    ]


def test_producer_records_carry_headers_timestamps_and_tombstones() -> None:
    sink: KafkaSink[Any] = KafkaSink.records("out", key=Utf8(), value=Utf8())
    bench = Bench(sink)
    bench.harness.run_until_idle()
    bench.writer.write(
        batch(
            ProducerRecord(key="k", value="v", headers=(("h", b"1"),), timestamp_ms=5),
            ProducerRecord(key="k", value=None),
            ProducerRecord(key=None, value="w"),
        )
    )
    bench.writer.write(batch(ProducerRecord(key="k", value="plain")))
    assert [record for _, record in bench.broker.log] == [
        ("out", b"v", b"k", (("h", b"1"),), 5),
        ("out", None, b"k", (), None),
        ("out", b"w", None, (), None),
        ("out", b"plain", b"k"),
    ]


@pytest.mark.parametrize(
    ("sink", "wrong", "said"),
    [
        (KafkaSink("out", value=Utf8()), 5, "could not encode a value of type int"),
        (KafkaSink("out", value=Json(int)), 1j, "could not encode a value of type complex"),
        (
            KafkaSink("out", value=Utf8(), record_key=lambda text: str(1 // (len(text) - 3))),
            "abc",
            "could not take the key (record_key) of",
        ),
        (
            KafkaSink("out", value=Utf8(), record_key=len),  # type: ignore[arg-type]
            "abc",
            "a key of type int needs a format",
        ),
    ],
)
def test_error_of_a_value_that_cannot_be_encoded_names_its_source_record(
    sink: KafkaSink[Any], wrong: Any, said: str
) -> None:
    bench = Bench(sink)
    sink.names.append("out")
    good = 1 if said.endswith("complex") else "good"
    with pytest.raises(UserCodeError) as raised:
        bench.writer.write(batch(good, wrong, good, first=70))
    text = str(raised.value)
    assert said in text
    assert "'out'" in text
    if "needs a format" not in said:
        assert "in-3 at offset 71" in text
    assert raised.value.__cause__ is not None
