"""The reader of assigned partitions with librdkafka: `PartitionReader` of `ports/kafka.py`.

The reader assigns partitions and never subscribes. The JobMaster decides which partitions a subtask
reads, and the checkpoint decides the offsets. The reader commits offsets for lag monitoring only,
and it never resets an offset. An offset that the log no longer has is an error, because a jump
would lose records silently.

Only the mailbox thread uses the reader. The cost on the hot path is the number of calls into C per
record. So errors, partitions and (in the data plane) offsets and values are read by `map` over the
client's own accessors.

Invariant: the batches of a partition come in the order of the log and without gaps, except for
control records and aborted data. `position` includes those.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, cast

from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka import KafkaError as Code
from confluent_kafka import TopicPartition as ClientPartition

from tidegate.drivers.kafka.admin import KafkaClusterAdmin
from tidegate.drivers.kafka.settings import CLIENT_LOG, bootstrap_servers, librdkafka
from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.errors import (
    InternalError,
    KafkaError,
    KafkaNotAuthorisedError,
    RefusedError,
    TidegateError,
)
from tidegate.ports.kafka import PartitionBatch, Position
from tidegate.ports.kafka import RawRecord as PortMessage
from tidegate.stream_elements import TopicPartition

_LOG: Final = logging.getLogger(__name__)

SETTINGS: Final[dict[str, object]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "max.poll.interval.ms": 86_400_000,
    # A source that pauses (backpressure, a slow sink) must not count as a dead group member.
}
DEFAULTS: Final[dict[str, str]] = {
    # ms; the default of 1000 costs a factor 4 in throughput once the queue has been full.
    "fetch.queue.backoff.ms": "5",
    # Records read ahead per partition, and at most 32 MiB in all of them together.
    "queued.min.messages": "50000",
    "queued.max.messages.kbytes": "32768",
    "reconnect.backoff.max.ms": "1000",
    # Bytes. A broker sends one batch, however large it is: up to its socket.request.max.bytes of
    # 104,857,600. The client's default of 100,000,000 would then refuse each answer.
    "receive.message.max.bytes": "2147483647",
}
"""The settings that a user may override, unlike SETTINGS."""

IDLE_CHECK_S: Final = 30.0
"""The time without records after which the reader checks whether its partitions still exist, in
seconds.
"""

CONNECTION_CHECK_S: Final = 3.0
"""The time without records after an error of the client, in seconds, before the reader checks
whether the leaders answer. Also the pause between two such checks. The client does not report when
it is connected again.
"""
UNKNOWN_EPOCH: Final = -1
READ_COMMITTED: Final = "read_committed"
READ_UNCOMMITTED: Final = "read_uncommitted"

_ABSENT: Final = frozenset(
    {Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION}
)
_DENIED: Final = frozenset({Code.TOPIC_AUTHORIZATION_FAILED, Code._AUTHENTICATION})


class KafkaPartitionReader:
    """A consumer of explicitly assigned partitions. `commit` reports progress to the consumer group
    `group`.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        group: str,
        *,
        with_end_of_partition: bool = False,
        isolation_level: str = READ_COMMITTED,
    ) -> None:
        self._servers = bootstrap_servers(settings)
        self._positions: dict[TopicPartition, int] = {}
        self._one_topic = True
        self._commit_failures = 0
        self._settings = dict(settings)
        self._denied: Code | None = None
        self._missing_partition_error: KafkaError | None = None
        self._failure: BaseException | None = None
        self._heard_at = time.monotonic()
        self._client_error = self._connection_error = ""
        self._checking = False
        self._checked_at = self._heard_at
        config = librdkafka(
            {**DEFAULTS, **settings},
            {
                **SETTINGS,
                "isolation.level": isolation_level,
                "group.id": group,
                "enable.partition.eof": with_end_of_partition,
                "error_cb": self._on_error,
                "on_commit": self._on_commit,
                "logger": CLIENT_LOG,
            },
        )
        try:
            self._consumer = Consumer(config)
        except KafkaException as error:
            raise KafkaError(
                f"A Kafka consumer cannot be made: {error.args[0].str()}. Check kafka.properties "
                "and the source's own settings."
            ) from None
        self._poll, self._consume = self._consumer.poll, self._consumer.consume

    @property
    def commit_failures(self) -> int:
        """The number of offset commits that the broker refused. Only lag monitoring is affected."""
        return self._commit_failures

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions, from these offsets on. KafkaError if the client refuses
        the assignment.
        """
        self._positions = dict(positions)
        self._one_topic = len({topic_partition.topic for topic_partition in positions}) == 1
        try:
            self._consumer.assign(
                [ClientPartition(topic, part, at) for (topic, part), at in positions.items()]
            )
        except KafkaException as error:
            raise KafkaError(f"Kafka does not take the assignment: {error.args[0].str()}") from None

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionBatch]:
        """Return the records that have arrived, at most `max_records`. Wait up to `timeout_s`
        seconds for the first one.

        KafkaError if reading fails, for example because an assigned offset is no longer in the log.
        An unexpected exception of a background check is raised here too.
        """
        end_if_forked()
        if self._failure is not None:
            raise self._failure
        try:
            # consume(n, t) would wait for n records or the whole time t. So take what is there. If
            # there is nothing, wait for one record, and take those that came with it.
            messages = self._consume(max_records, 0)
            if not messages:
                first = self._poll(timeout_s)
                if first is None:
                    self._check_idle()
                    return []
                messages = [first]
                if max_records > 1:
                    messages += self._consume(max_records - 1, 0)
            self._heard_at, self._denied = time.monotonic(), None
            self._client_error = self._connection_error = ""
        except KafkaException as error:
            raise self._error(TopicPartition("", -1), error.args[0]) from None
        if any(map(Message.error, messages)):
            return self._with_events(messages)
        return self._split_by_partition(messages)

    def pause(self, topic_partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions (a bounded split that has reached its end)."""
        self._consumer.pause([ClientPartition(topic, part) for topic, part in topic_partitions])

    def positions(self) -> dict[TopicPartition, Position]:
        """Return the position in each partition. It is after the records that `poll` has returned,
        and after markers and aborted records that follow them and are not delivered. A partition
        from which nothing was read is left out.

        Call this once per checkpoint. Events at the ends of partitions could replace it, but would
        cost a reader that keeps up a sixth of its CPU (measured at 20,000 records/s).
        """
        partitions = self._consumer.position(
            [ClientPartition(*topic_partition) for topic_partition in self._positions]
        )
        return {
            TopicPartition(each.topic, each.partition): Position(each.offset, _epoch(each))
            for each in partitions
            if each.offset >= 0
        }

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """Return the newest known end offset of each assigned partition, without a request to the
        broker.

        A partition from which nothing was fetched yet is left out.
        """
        found = {}
        for topic_partition in self._positions:
            offsets = self._consumer.get_watermark_offsets(
                ClientPartition(*topic_partition), cached=True
            )
            if offsets[1] >= 0:
                found[topic_partition] = offsets[1]
        return found

    def commit(self, positions: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit offsets to the consumer group, each with `metadata`, without waiting.

        Refused commits are counted (`commit_failures`), and only the first is logged.
        """
        offsets = [
            ClientPartition(topic, part, at, metadata) for (topic, part), at in positions.items()
        ]
        if not offsets:
            return
        end_if_forked()
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self._on_commit(error.args[0], offsets)

    def connection_error(self) -> str:
        """Return the client's error while nothing can be read. Empty after records come again, or
        after the leaders of all partitions have answered.
        """
        return self._connection_error

    def close(self) -> None:
        """Close the consumer. Records that were fetched and not polled are dropped."""
        self._consumer.close()

    def _check_idle(self) -> None:
        """Raise errors that librdkafka does not report: refused credentials, a deleted topic. Start
        the background checks when they are due.

        For assigned partitions, librdkafka asks for a deleted topic forever and reports no error.
        """
        if self._denied is not None:
            raise self._error(TopicPartition("", -1), self._denied)
        if self._missing_partition_error is not None:
            raise self._missing_partition_error
        now = time.monotonic()
        if self._client_error and self._positions and now - self._heard_at > CONNECTION_CHECK_S:
            self._check_connection(now)
        if self._positions and now - self._heard_at > IDLE_CHECK_S:
            self._heard_at = now
            topic_partitions = set(self._positions)
            self._in_background(lambda: self._check_partitions_exist(topic_partitions))

    def _check_connection(self, now: float) -> None:
        self._connection_error = self._client_error
        if self._checking or now - self._checked_at < CONNECTION_CHECK_S:
            return
        self._checking, self._checked_at = True, now
        topic_partitions = list(self._positions)
        self._in_background(lambda: self._check_leaders(topic_partitions))

    def _in_background(self, question: Callable[[], None]) -> None:
        """Run a check in a new thread, because it waits for an answer. The next `poll` raises an
        exception of the check.
        """

        def ask() -> None:
            try:
                question()
            except BaseException as error:  # noqa: BLE001 - for the thread that polls
                self._failure = error

        threading.Thread(target=ask, daemon=True).start()

    def _check_leaders(self, topic_partitions: list[TopicPartition]) -> None:
        """Clear the error of the client if the leaders of all partitions answer."""
        error = self._client_error
        try:
            admin = KafkaClusterAdmin(self._settings)
            try:
                admin.latest(topic_partitions)
            finally:
                admin.close()
        except InternalError:
            raise
        except TidegateError as refused:
            CLIENT_LOG.info("the source's partitions cannot be reached: %s", refused)
        else:
            if self._client_error == error:
                self._client_error = self._connection_error = ""
        finally:
            self._checking = False

    def _check_partitions_exist(self, topic_partitions: set[TopicPartition]) -> None:
        """Check whether the topics and partitions still exist. If not, `_check_idle` raises an
        error.
        """
        try:
            admin = KafkaClusterAdmin(self._settings)
            try:
                for topic in {topic_partition.topic for topic_partition in topic_partitions}:
                    partitions = admin.partitions(topic)
                    for topic_partition in topic_partitions:
                        if (
                            topic_partition.topic == topic
                            and topic_partition.partition >= partitions
                        ):
                            self._missing_partition_error = self._absent(
                                f"{topic}-{topic_partition.partition}"
                            )
            finally:
                admin.close()
        except RefusedError as error:
            self._missing_partition_error = KafkaError(str(error))
        except KafkaError as error:  # an outage: the client continues to try, and so does this
            CLIENT_LOG.info("the idle source's topic could not be described: %s", error)

    def _absent(self, where: str) -> KafkaError:
        return KafkaError(
            f"Partition {where} does not exist at {self._servers}: the topic was deleted, or "
            "created again with fewer partitions. Create it again, or change the source's topic."
        )

    def _split_by_partition(self, messages: list[Message]) -> list[PartitionBatch]:
        """Split messages by partition. A fetch returns partition after partition, so the batches
        are long.
        """
        if not self._one_topic:
            return [self._run(list(run)) for _, run in groupby(messages, key=_topic_partition)]
        partitions = list(map(Message.partition, messages))
        if partitions.count(partitions[0]) == len(partitions):
            return [self._run(messages)]
        return [self._run(list(run)) for _, run in groupby(messages, key=Message.partition)]

    def _run(self, messages: list[Message]) -> PartitionBatch:
        last = messages[-1]
        topic_partition = TopicPartition(cast("str", last.topic()), cast("int", last.partition()))
        return PartitionBatch(
            topic_partition, cast("list[PortMessage]", messages), cast("int", last.offset()) + 1
        )

    def _with_events(self, messages: list[Message]) -> list[PartitionBatch]:
        """Split messages that include events. The end of a partition becomes an empty batch, and an
        error is raised.

        Records before an error are dropped. That does no harm: the attempt ends, and the next
        attempt starts at the offsets of a checkpoint.
        """
        runs: list[PartitionBatch] = []
        records: list[Message] = []
        for message in messages:
            event = message.error()
            if event is None:
                records.append(message)
                continue
            if event.code() == Code.GROUP_AUTHORIZATION_FAILED:
                self._on_commit(event, [])  # only lag monitoring needs the group, reading does not
                continue
            if records:
                runs += self._split_by_partition(records)
                records = []
            topic_partition = TopicPartition(
                message.topic() or "", cast("int", message.partition())
            )
            if event.code() != Code._PARTITION_EOF:
                raise self._error(topic_partition, event)
            runs.append(PartitionBatch(topic_partition, (), cast("int", message.offset())))
        return runs + self._split_by_partition(records) if records else runs

    def _error(self, topic_partition: TopicPartition, event: Any) -> TidegateError:
        where = (
            f"{topic_partition.topic}-{topic_partition.partition}"
            if topic_partition.topic
            else "its partitions"
        )
        code = event.code()
        if code == Code._AUTO_OFFSET_RESET:
            return KafkaError(
                f"Partition {where} at {self._servers}, which is read from offset "
                f"{self._positions.get(topic_partition, 'unknown')}, cannot be read on: "
                f"{event.str()}. The next offset is not in the log any more, or not yet (retention "
                "has deleted it, an unclean leader election has truncated the log, or the topic "
                "was created again). Start from another checkpoint, or from new offsets with "
                "--restore none; records between, if any, are lost."
            )
        if code in _ABSENT:
            return self._absent(where)
        if code in _DENIED:
            return KafkaNotAuthorisedError(
                f"Kafka at {self._servers} does not allow reading {where} ({event.str()}): grant "
                "the job's principal READ on the topic and check its credentials in "
                "kafka.properties."
            )
        return KafkaError(f"Reading {where} at {self._servers} failed: {event.str()}")

    def _on_error(self, event: Code) -> None:
        # Lost connections are reported here too. The client reconnects, and a restart would not be
        # faster. But while nothing can be read, the status must give the reason.
        if event.code() in _DENIED:
            self._denied = event
        else:
            self._client_error = str(event.str())

    def _on_commit(self, error: Any, _offsets: list[ClientPartition]) -> None:
        if error is None:
            return
        self._commit_failures += 1
        if self._commit_failures == 1:
            _LOG.warning(
                "offsets could not be committed to the consumer group (lag monitoring is behind, "
                "nothing else is affected; further failures are only counted): %s",
                error.str(),
            )


def _topic_partition(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()


def _epoch(position: ClientPartition) -> int:
    """Return the leader epoch of the last record before a position. The client returns None for an
    unknown epoch, although its type does not allow None.
    """
    epoch = cast("int | None", position.leader_epoch)
    return UNKNOWN_EPOCH if epoch is None else epoch
