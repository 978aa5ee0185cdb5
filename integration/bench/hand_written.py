"""Runs the workloads as PySpark jobs written by hand, for the comparison with backfills on Spark.

An expert who accepts lost and repeated records writes such a job. Each task has a range of offsets.
A `mapInArrow` reads them with confluent-kafka, decodes them, and keeps the columns that the job
needs. For the running total, records are partitioned by user and sorted by time. The totals are in
a dict, and an idempotent producer writes them.

These jobs do not survive a crash. A task that Spark repeats writes its records twice, the dict is
lost at the end, and no offset is stored for the next run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, Producer, TopicPartition

from integration.bench.data import THRESHOLD, Click, ClickWithFee
from integration.bench.loop import UserTotal

ROWS_PER_BATCH: Final = 50_000
"""Rows of an Arrow batch between the JVM and Python. It was the cheapest of several sizes."""
CLICKS: Final = "user string, amount double, ts long, partition int, offset long"
COUNT: Final = "written long"
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run. Spark pickles it by the name of its class and its fields."""

    bootstrap: str
    source: str
    sink: str
    ends: Mapping[int, int]
    """Offset after the last record of each partition."""
    tasks: int

    def messages(self, task: int) -> Iterator[list[Any]]:
        """Yield the records of the partitions of a task, a few thousand at a time."""
        ends = {p: end for p, end in self.ends.items() if p % self.tasks == task and end}
        if not ends:
            return
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "hand-written",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.queue.backoff.ms": 5,
                "queued.min.messages": 100_000,
            }
        )
        consumer.assign([TopicPartition(self.source, p, 0) for p in ends])
        left = sum(ends.values())
        while left:
            found: list[Any] = consumer.consume(5_000, 0.05)
            mine = [m for m in found if m.error() is None and m.offset() < ends[m.partition()]]
            left -= len(mine)
            yield mine
        consumer.close()

    def produce(self, columns: Iterator[tuple[list[bytes], list[bytes]]]) -> int:
        """Write values with their keys. Return the number of records."""
        failures: list[object] = []
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
                "partitioner": "murmur2_random",
                "delivery.report.only.error": True,
                "on_delivery": lambda error, _: failures.append(error),
            }
        )
        written = 0
        for values, keys in columns:
            for value, key in zip(values, keys, strict=True):
                while True:
                    try:
                        producer.produce(self.sink, value, key)
                        break
                    except BufferError:
                        producer.poll(0.05)
            producer.poll(0)
            written += len(values)
        if producer.flush(TIMEOUT_S) or failures:
            message = f"Records were not written: {failures[:1]}"
            raise RuntimeError(message)
        return written


def transform(spark: Any, job: Job) -> int:
    """Read, decode, filter, add a field and write, in one stage. Return the number written."""
    return _total(_source(spark, job).mapInArrow(_TransformTask(job), COUNT))


def total(spark: Any, job: Job) -> int:
    """Write the running total of each user, in two stages. Return the number written."""
    clicks = _source(spark, job).mapInArrow(_ReadTask(job), CLICKS)
    by_user = clicks.repartition(job.tasks, "user")
    in_order = by_user.sortWithinPartitions("ts", "partition", "offset")
    return _total(in_order.mapInArrow(_TotalTask(job), COUNT))


JOBS: Final[Mapping[str, Callable[[Any, Job], int]]] = {"transform": transform, "total": total}


def run(spark: Any, workload: str, job: Job) -> int:
    """Run a workload in a session. Return the number of written records."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_BATCH))
    return JOBS[workload](spark, job)


def _source(spark: Any, job: Job) -> Any:
    return spark.range(0, job.tasks, 1, job.tasks)


def _total(counts: Any) -> int:
    return sum(row.written for row in counts.collect())


def _task_of(batches: Iterator[Any]) -> int:
    numbers: list[int] = [number for batch in batches for number in batch.column(0).to_pylist()]
    return numbers[0]


def _count(written: int) -> Iterator[Any]:
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"written": pa.array([written], type=pa.int64())})


@dataclass(frozen=True, slots=True)
class _TransformTask:
    job: Job

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        decode, encode = msgspec.json.Decoder(ClickWithFee).decode, msgspec.json.Encoder().encode

        def columns() -> Iterator[tuple[list[bytes], list[bytes]]]:
            for messages in self.job.messages(_task_of(batches)):
                values, keys = [], []
                for m in messages:
                    c = decode(m.value())
                    if c.amount > THRESHOLD:
                        c.fee = round(c.amount * 0.02, 2)
                        values.append(encode(c))
                        keys.append(m.key())
                yield values, keys

        yield from _count(self.job.produce(columns()))


@dataclass(frozen=True, slots=True)
class _ReadTask:
    job: Job

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        decode = msgspec.json.Decoder(Click).decode
        names = ("user", "amount", "ts", "partition", "offset")
        types = (pa.string(), pa.float64(), pa.int64(), pa.int32(), pa.int64())
        for messages in self.job.messages(_task_of(batches)):
            if not messages:
                continue
            clicks = [decode(m.value()) for m in messages]
            columns = (
                [c.user for c in clicks],
                [c.amount for c in clicks],
                [c.ts for c in clicks],
                [m.partition() for m in messages],
                [m.offset() for m in messages],
            )
            arrays = [pa.array(c, type=kind) for c, kind in zip(columns, types, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


@dataclass(frozen=True, slots=True)
class _TotalTask:
    job: Job

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        encode = msgspec.json.Encoder().encode
        totals: dict[str, tuple[int, float]] = {}

        def columns() -> Iterator[tuple[list[bytes], list[bytes]]]:
            for batch in batches:
                users, amounts = batch.column(0).to_pylist(), batch.column(1).to_pylist()
                values = []
                for user, amount in zip(users, amounts, strict=True):
                    count, paid = totals.get(user, (0, 0.0))
                    now = totals[user] = (count + 1, paid + amount)
                    values.append(encode(UserTotal(user, *now)))
                yield values, [user.encode() for user in users]

        yield from _count(self.job.produce(columns()))
