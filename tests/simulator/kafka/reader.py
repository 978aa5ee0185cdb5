"""The `PartitionReader` on the fake brokers, with the behavior that librdkafka shows its caller.

The reader fetches when it is polled, and does not read ahead. A fetch that the hook of faults
delays or loses holds back only its own partition, because librdkafka fetches in its own threads. A
call while another thread waits for records is an error in this fake. The real client blocks such a
call for as long as other threads keep waiting for records.

The reader reports ends of partitions as librdkafka does, and only if asked for: once for each
position at which it reaches the end. Only such a report shows a position after trailing markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from tests.simulator.kafka.brokers import Brokers
from tests.simulator.kafka.connection import Connection
from tests.simulator.kafka.faults import PROCEED, Api, BrokerError, Call, Code
from tests.simulator.kafka.timeline import ROUNDING_S
from tidegate.errors import InternalError, KafkaError, KafkaNotAuthorisedError, TidegateError
from tidegate.ports.kafka import GroupCommit, PartitionBatch, Position
from tidegate.stream_elements import TopicPartition

POLL_SLICE_S: Final = 0.05
"""Interval at which a waiting reader checks for records. An arriving record does not wake it."""
REFETCH_S: Final = 0.1
"""Time before the next fetch after a fetch without an answer."""
IDLE_CHECK_S: Final = 30.0
"""Time without records after which the reader checks whether its topics still exist."""


class _Assigned:
    """An assigned partition: its position, and the end that was reported."""

    __slots__ = ("asked", "end_told", "epoch", "fetch_s", "high", "paused", "position", "start")

    def __init__(self, position: int) -> None:
        self.start = self.position = position
        self.end_told = -1
        self.epoch = -1
        self.high: int | None = None
        self.paused = False
        self.asked = False
        """Whether a fetch is in flight, until `fetch_s`."""
        self.fetch_s = 0.0


class FakeReader:
    """A consumer of assigned partitions."""

    def __init__(
        self,
        brokers: Brokers,
        connection: Connection,
        user: str,
        group: str,
        *,
        with_end_of_partition: bool,
    ) -> None:
        self._brokers, self._connection, self._user = brokers, connection, user
        self._group, self._reports_ends = group, with_end_of_partition
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._last_records_s = connection.timeline.now_s()
        self._turn = 0
        self._waits = False
        self.commit_failures = 0

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, starting at these offsets."""
        self._assigned = {
            topic_partition: _Assigned(at) for topic_partition, at in positions.items()
        }

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        """Return the arrived records. Wait up to `timeout_s` for the first of them.

        Raise KafkaError if a partition cannot be read.
        """
        timeline = self._connection.timeline
        timeline.run_due()
        end_s = timeline.now_s() + timeout_s
        while True:
            runs = self._arrived(max_records)
            now_s = timeline.now_s()
            if runs:
                self._last_records_s = now_s
                return runs
            if now_s >= end_s - ROUNDING_S:
                self._when_idle(now_s)
                return []
            self._waits = True
            self._connection.sleep_until(min(end_s, now_s + POLL_SLICE_S))
            self._waits = False

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the positions, which are after skipped records and markers.

        Partitions whose position has not moved are left out.
        """
        self._check_alone()
        return {
            topic_partition: Position(each.position, each.epoch)
            for topic_partition, each in self._assigned.items()
            if each.position > each.start
        }

    @property
    def read_positions(self) -> dict[TopicPartition, int]:
        """Positions of all partitions, for checkers. They may read it while a thread waits."""
        return {topic_partition: each.position for topic_partition, each in self._assigned.items()}

    def pause(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions."""
        self._check_alone()
        for topic_partition in topic_partitions:
            self._assigned[topic_partition].paused = True

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the newest known end offsets of the partitions that were fetched from."""
        self._check_alone()
        return {
            topic_partition: each.high
            for topic_partition, each in self._assigned.items()
            if each.high is not None
        }

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets to the consumer group, without waiting; failures are counted."""
        self._check_alone()
        if not positions:
            return
        kept = {
            topic_partition: GroupCommit(at, metadata) for topic_partition, at in positions.items()
        }

        def act() -> None:
            self._brokers.commit_offsets(self._user, self._group, kept)

        call = Call(Api.OFFSET_COMMIT, self._connection.name, name=self._group)
        self._connection.send(call, act, self._committed)

    def connection_error(self) -> str:
        """Return an empty text: a simulated client only retries requests that fail."""
        return ""

    def close(self) -> None:
        """Drop the assignment."""
        self._check_alone()
        self._assigned = {}

    def _check_alone(self) -> None:
        if self._waits:
            message = "a consumer is called while another thread waits for its records"
            raise InternalError(message)

    def _committed(self, sent_request: object) -> None:
        try:
            sent_request.result()  # type: ignore[attr-defined]
        except BrokerError:
            self.commit_failures += 1

    def _arrived(self, records_max: int) -> list[PartitionBatch]:
        """Return batches of the partitions in rotating order, so that no partition starves."""
        order = list(self._assigned)
        self._turn = (self._turn + 1) % max(1, len(order))
        runs: list[PartitionBatch] = []
        left = records_max
        for topic_partition in order[self._turn :] + order[: self._turn]:
            each = self._assigned[topic_partition]
            if left <= 0:
                break
            if each.paused:
                continue
            for run in self._fetched(topic_partition, each, left):
                runs.append(run)
                left -= max(1, len(run.messages))
        return runs

    def _fetched(
        self, topic_partition: TopicPartition, each: _Assigned, records_max: int
    ) -> list[PartitionBatch]:
        try:
            if not self._may_fetch(topic_partition, each):
                return []
            fetched = self._brokers.fetch(self._user, topic_partition, each.position, records_max)
        except BrokerError as error:
            if error.code is Code.UNKNOWN_TOPIC_OR_PARTITION:
                return []  # librdkafka keeps asking and reports nothing
            raise self._error(topic_partition, each, error.code) from None
        each.high, each.asked = fetched.end, False
        each.position, each.epoch = fetched.position, fetched.leader_epoch
        runs = []
        if fetched.records:
            runs.append(
                PartitionBatch(topic_partition, fetched.records, fetched.records[-1].offset() + 1)
            )
        at_end = each.position == fetched.last_stable and len(fetched.records) < records_max
        if self._reports_ends and at_end and each.end_told != each.position:
            each.end_told = each.position
            runs.append(PartitionBatch(topic_partition, (), each.position))
        return runs

    def _may_fetch(self, topic_partition: TopicPartition, each: _Assigned) -> bool:
        """Return whether the answer to a fetch has arrived.

        The hook sees only a fetch that returns something, because brokers hold back other fetches
        until they can.
        """
        now_s = self._connection.timeline.now_s()
        if each.asked:
            return now_s >= each.fetch_s
        if now_s < each.fetch_s:
            return False
        if each.high is not None and self._nothing_new(topic_partition, each):
            return False
        verdict = self._connection.verdict(
            Call(
                Api.FETCH, self._connection.name, topic_partition=topic_partition, name=self._group
            )
        )
        if verdict is PROCEED:
            return True
        each.fetch_s = now_s + verdict.request_s + verdict.answer_s
        if verdict.lost is None and verdict.refusal is None:
            each.asked = True
            return now_s >= each.fetch_s
        each.fetch_s += REFETCH_S
        return False

    def _nothing_new(self, topic_partition: TopicPartition, each: _Assigned) -> bool:
        log = self._brokers.partition(topic_partition)
        each.high = log.end
        at_end = each.position == log.last_stable
        return at_end and (not self._reports_ends or each.end_told == each.position)

    def _when_idle(self, now_s: float) -> None:
        if now_s - self._last_records_s <= IDLE_CHECK_S:
            return
        self._last_records_s = now_s
        for topic_partition in self._assigned:
            try:
                self._brokers.partition(topic_partition)
            except BrokerError:
                raise KafkaError(
                    f"Partition {topic_partition.topic}-{topic_partition.partition}: there is no "
                    "such topic or partition. It was deleted, or created again with fewer "
                    "partitions."
                ) from None

    def _error(self, topic_partition: TopicPartition, each: _Assigned, code: Code) -> TidegateError:
        where = f"{topic_partition.topic}-{topic_partition.partition}"
        if code is Code.OFFSET_OUT_OF_RANGE:
            return KafkaError(
                f"Partition {where} of the fake Kafka cannot be read from offset {each.start}: "
                "it is not in the log any more, or not yet."
            )
        if code is Code.TOPIC_AUTHORIZATION_FAILED:
            return KafkaNotAuthorisedError(
                f"The fake Kafka does not allow reading {where}: grant READ on the topic."
            )
        return KafkaError(f"Reading {where} of the fake Kafka failed: {code.value}.")
