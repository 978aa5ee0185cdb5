"""Questions to a Kafka cluster at submit and at the start of an attempt: `KafkaAdmin` of
`ports/drivers.py`, with confluent-kafka's admin client.

The JobMaster (split enumeration, checks of a submit) and the command line ask them. The calls
block, and there are a few per attempt. Each question is answered, or fails within about ten seconds
with an error that names the brokers, the topic or the missing right. A user with a wrong set-up
sees these errors first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import KafkaError as Code
from confluent_kafka import (
    TopicPartition as ClientPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # exported by assignment
    AdminClient,
    ConfigResource,
    OffsetSpec,
)

from tidegate.drivers.kafka.asking import AdminClients, Question, explained
from tidegate.drivers.kafka.reachability import names_unknown, protocol_of, why_unreachable
from tidegate.drivers.kafka.settings import CLIENT_LOG, bootstrap_servers, librdkafka
from tidegate.errors import (
    KafkaError,
    KafkaUnavailableError,
    NotAllowedError,
    RefusedError,
    TidegateError,
    TopicAbsentError,
    check,
)
from tidegate.ports.kafka import GroupCommit
from tidegate.stream_elements import TopicPartition

K = TypeVar("K")

ANSWER_TIMEOUT_S: Final = 9.0
"""The maximum time for one question, in seconds. An unreachable broker is reported within ten
seconds. A busy broker with 100 partitions to make once needed 8.
"""
UNKNOWN_NAME_S: Final = 2.0
"""The time in seconds after which an unknown name of a broker is an error. A name server may be
slow, or may not know a new container yet."""

METADATA_TRY_S: Final = 1.0
"""The time without an answer, in seconds, after which the client checks whether the broker has
refused its credentials.
"""
MAX_TIMEOUT_NAME: Final = "transaction.max.timeout.ms"
MAX_BYTES_NAME: Final = "max.message.bytes"

_log = logging.getLogger(__name__)

_UNREACHABLE: Final = frozenset(
    {
        Code._TRANSPORT,
        Code._ALL_BROKERS_DOWN,
        Code._TIMED_OUT,
        Code._RESOLVE,
        Code._WAIT_COORD,
        Code.REQUEST_TIMED_OUT,
        Code.COORDINATOR_NOT_AVAILABLE,
        Code.COORDINATOR_LOAD_IN_PROGRESS,
        Code.NOT_COORDINATOR,
        Code.LEADER_NOT_AVAILABLE,
        Code.BROKER_NOT_AVAILABLE,
        Code.NETWORK_EXCEPTION,
    }
)
_ELECTING: Final = frozenset(
    {
        Code.NOT_LEADER_FOR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        # The broker or the client does not know the newest leader yet.
        Code.UNKNOWN_LEADER_EPOCH,
        Code.FENCED_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code._NOENT,  # "no leaders found", also for a topic that does not exist
    }
)
_ABSENT: Final = frozenset(
    {Code.UNKNOWN_TOPIC_OR_PART, Code._UNKNOWN_TOPIC, Code._UNKNOWN_PARTITION, Code._NOENT}
)
_DENIED: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.GROUP_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code._AUTHENTICATION,
        Code.SASL_AUTHENTICATION_FAILED,
    }
)
_NO_SASL: Final = "Request not valid in current SASL state"
"""The answer of a broker to a SASL handshake at a listener without SASL."""

_NO_MECHANISM: Final = "Unsupported SASL mechanism"
_UNKNOWN_PRINCIPAL: Final = frozenset({Code._AUTHENTICATION, Code.SASL_AUTHENTICATION_FAILED})


class _Denials:
    """The refusals that a client reports by its error callback.

    To a caller that waits for an answer, refused credentials look like an unreachable broker.
    """

    def __init__(self) -> None:
        self.newest: Code | None = None

    def note(self, event: Code) -> None:
        if event.code() in _DENIED:
            self.newest = event


class KafkaClusterAdmin:
    """An admin client of one cluster. It connects at the first question."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._servers, self._protocol = bootstrap_servers(settings), protocol_of(settings)
        self._denials = _Denials()
        # A bound method of this object would make a reference cycle with the client (`asking.py`).
        ours: dict[str, object] = {"error_cb": self._denials.note, "logger": CLIENT_LOG}
        config = librdkafka(_for_admin(settings), ours)
        try:
            self._clients = AdminClients(lambda: AdminClient(config))
        except KafkaException as error:
            raise RefusedError(
                f"A Kafka client cannot be made: {error.args[0].str()}. Check kafka.properties."
            ) from None

    def cluster_id(self) -> str:
        """Return the cluster's id."""
        found = self._metadata().cluster_id
        check(found, "metadata of a broker carries the cluster's id")
        return str(found)

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions. TopicAbsentError if the topic does not
        exist.
        """
        found = self._described(topic).partitions
        if not found:
            raise self._absent(f"describe topic {topic}")
        return len(found)

    def rights(self, topic: str) -> frozenset[str] | None:
        """Return the operations that the principal may do with a topic, by Kafka's names (READ,
        WRITE). None if the brokers do not report them.
        """
        allowed = self._described(topic).authorized_operations
        return None if allowed is None else frozenset(each.name for each in allowed)

    def earliest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset that is still in the log, for each partition."""
        spec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._offsets(topic_partitions, spec)

    def latest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets for `read_committed` readers (the last stable offset)."""
        return self._offsets(topic_partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def high_watermarks(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets including records that open transactions hide from
        `read_committed` readers.
        """
        return self._offsets(
            topic_partitions,
            OffsetSpec.latest(),  # type: ignore[no-untyped-call]
            IsolationLevel.READ_UNCOMMITTED,
        )

    def at_time(
        self, topic_partitions: list[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset at or after a time, for each partition. If the partition has no
        such record, return its end offset.
        """
        found = self._offsets(topic_partitions, OffsetSpec.for_timestamp(timestamp_ms))
        after_all = [topic_partition for topic_partition, offset in found.items() if offset < 0]
        return {**found, **self.latest(after_all)} if after_all else found

    def committed(
        self, group: str, topic_partitions: list[TopicPartition]
    ) -> dict[TopicPartition, int | None]:
        """Return a consumer group's offsets. None for a partition without a committed offset."""
        found: dict[TopicPartition, int | None] = dict.fromkeys(topic_partitions)
        asked = ConsumerGroupTopicPartitions(
            group, [ClientPartition(*each) for each in topic_partitions]
        )
        commits = self._group_commits(asked)
        return {
            **found,
            **{topic_partition: commit.offset for topic_partition, commit in commits.items()},
        }

    def group_commits(self, group: str) -> dict[TopicPartition, GroupCommit]:
        """Return all offsets of a consumer group with their metadata."""
        return self._group_commits(ConsumerGroupTopicPartitions(group))

    def commit_group(self, group: str, commits: Mapping[TopicPartition, GroupCommit]) -> None:
        """Commit offsets to a consumer group without members. A repetition does no harm."""
        what = f"commit offsets to consumer group {group}"
        offsets = [
            ClientPartition(*topic_partition, offset=each.offset, metadata=each.metadata)
            for topic_partition, each in commits.items()
        ]
        told = ConsumerGroupTopicPartitions(group, offsets)
        answers = self._answers(
            [group],
            lambda _: what,
            lambda client, _, left_s: client.alter_consumer_group_offsets(
                [told], request_timeout=left_s
            ),
        )
        for each in answers[group].topic_partitions:
            if each.error is not None:
                raise self._translated(what, each.error)

    def _group_commits(
        self, asked: ConsumerGroupTopicPartitions
    ) -> dict[TopicPartition, GroupCommit]:
        what = f"read the offsets of consumer group {asked.group_id}"
        answers = self._answers(
            [asked.group_id],
            lambda _: what,
            lambda client, _, left_s: client.list_consumer_group_offsets(
                [asked], request_timeout=left_s
            ),
        )
        found = {}
        for each in answers[asked.group_id].topic_partitions:
            if each.error is not None:
                raise self._translated(what, each.error)
            if each.offset >= 0:
                commit = GroupCommit(each.offset, each.metadata or "")
                found[TopicPartition(each.topic, each.partition)] = commit
        return found

    def transaction_max_timeout_ms(self) -> int | None:
        """Return the smallest `transaction.max.timeout.ms` of the brokers. None if the principal
        may not read it.

        Reading it needs the right DESCRIBE_CONFIGS on the cluster, which no job needs otherwise.
        """
        brokers = [str(broker) for broker in self._metadata().brokers]
        check(brokers, "metadata names at least one broker")
        try:
            found = self._answers(
                brokers,
                lambda broker: f"read {MAX_TIMEOUT_NAME} of broker {broker}",
                configs_of(ConfigResource.Type.BROKER),
                enough=True,  # the metadata may still list a broker that has just died
            )
        except NotAllowedError:
            return None
        return min(int(each[MAX_TIMEOUT_NAME].value) for each in found.values())

    def max_message_bytes(self, topics: Collection[str]) -> dict[str, int]:
        """Return `max.message.bytes` of each topic whose configuration the principal may read.

        Reading it needs DESCRIBE_CONFIGS on the topic, a right that no job needs otherwise.
        """
        question = Question(self._clients, configs_of(ConfigResource.Type.TOPIC), _is_retriable)
        question.answer(topics, ANSWER_TIMEOUT_S)
        for topic in topics:
            if topic not in question.found:
                refused = self._unanswered(f"read {MAX_BYTES_NAME} of {topic}", question, topic)
                if not isinstance(refused, RefusedError):
                    raise refused
                # No right, or no such topic: other checks report that.
                _log.debug("the limit is not known", extra={"why": str(refused)})
        return {
            topic: int(configs[MAX_BYTES_NAME].value) for topic, configs in question.found.items()
        }

    def close(self) -> None:
        """End the client with its threads and connections. No other method may be called then."""
        self._clients.close()

    def _described(self, topic: str) -> Any:
        # Unlike a metadata request of the client, this request never creates the topic.
        answers = self._answers(
            [topic],
            lambda _: f"describe topic {topic}",
            lambda client, topics, left_s: client.describe_topics(
                TopicCollection(topics),
                include_authorized_operations=True,
                request_timeout=left_s,
            ),
        )
        return answers[topic]

    def _metadata(self) -> Any:
        began_s = time.monotonic()
        end_s = began_s + ANSWER_TIMEOUT_S
        while True:
            left_s = end_s - time.monotonic()
            try:
                return self._clients.current.list_topics(
                    timeout=max(0.1, min(METADATA_TRY_S, left_s))
                )
            except KafkaException as error:
                cause = error.args[0]
                # `poll` runs the callback for refused credentials.
                self._clients.current.poll(0)
                permanent = self._denials.newest is not None or cause.code() not in _UNREACHABLE
                now_s = time.monotonic()
                if now_s - began_s >= UNKNOWN_NAME_S and names_unknown(self._servers):
                    raise self._unreachable("describe the cluster") from None
                if permanent or now_s >= end_s:
                    raise self._translated("describe the cluster", cause) from None

    def _offsets(
        self,
        topic_partitions: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """Return the offsets that `spec` selects. Ask again while leaders are being elected,
        because a topic may be new.

        The client gives the same answer, that there are no leaders, for a topic that the principal
        may not describe. So each further try also describes the topic, and the broker answers with
        the reason.
        """
        earlier: dict[TopicPartition, Future[Any]] = {}

        def ask(
            client: AdminClient, missing: list[TopicPartition], left_s: float
        ) -> dict[TopicPartition, Future[Any]]:
            futures = client.list_offsets(
                {ClientPartition(*topic_partition): spec for topic_partition in missing},
                isolation_level=isolation,
                request_timeout=left_s,
            )
            answers = {TopicPartition(each.topic, each.partition): f for each, f in futures.items()}
            without = {each.topic for each in missing if _has_no_leader(earlier.get(each))}
            if without:
                described = client.describe_topics(
                    TopicCollection(sorted(without)), request_timeout=left_s
                )
                for topic_partition in (each for each in missing if each.topic in without):
                    why = described[topic_partition.topic]
                    answers[topic_partition] = explained(answers[topic_partition], why, _is_denial)
            earlier.update(answers)
            return answers

        answers = self._answers(
            list(topic_partitions),
            lambda topic_partition: (
                f"tell the offsets of {topic_partition.topic}-{topic_partition.partition}"
            ),
            ask,
        )
        return {topic_partition: answer.offset for topic_partition, answer in answers.items()}

    def _answers(
        self,
        about: list[K],
        what: Callable[[K], str],
        ask: Callable[[AdminClient, list[K], float], Mapping[K, Future[Any]]],
        *,
        enough: bool = False,
    ) -> dict[K, Any]:
        """Return the answer for each thing in `about`. Raise the error of the first one without an
        answer. With `enough`, things for which no broker answers are left out if others have an
        answer.
        """
        question = Question(self._clients, ask, _is_retriable)
        in_time = question.answer(about, ANSWER_TIMEOUT_S, enough=enough)
        for each in about:
            error = question.failed.get(each)
            silent = error is None or _is_retriable(error.args[0])
            if each not in question.found and not (enough and in_time and silent):
                raise self._unanswered(what(each), question, each)
        return question.found

    def _unanswered(self, what: str, question: Question[K], about: K) -> TidegateError:
        error = question.failed.get(about)
        if error is not None:
            return self._translated(what, error.args[0])
        return (
            self._unreachable(what)
            if self._denials.newest is None
            else self._translated(what, self._denials.newest)
        )

    def _translated(self, what: str, cause: Any) -> TidegateError:
        code = cause.code()
        denied = (
            self._denials.newest if code in _UNREACHABLE else cause if code in _DENIED else None
        )
        if denied is not None:
            if denied.code() in _UNKNOWN_PRINCIPAL and _NO_SASL in denied.str():
                return NotAllowedError(
                    f"Kafka at {self._servers} has no SASL at this listener, and kafka.properties "
                    f"has security.protocol = {self._protocol}. Use the address of a listener with "
                    "SASL, or remove security.protocol and sasl.* from kafka.properties."
                )
            if denied.code() in _UNKNOWN_PRINCIPAL and _NO_MECHANISM in denied.str():
                return NotAllowedError(
                    f"Kafka at {self._servers} does not support the sasl.mechanism of "
                    f"kafka.properties. It supports {_reason(denied)}. Correct it."
                )
            if denied.code() in _UNKNOWN_PRINCIPAL:
                return NotAllowedError(
                    f"Kafka at {self._servers} refused the credentials of kafka.properties "
                    f"(sasl.username, sasl.password, sasl.mechanism) when asked to {what}: "
                    f"{_reason(denied)}. Correct them."
                )
            return NotAllowedError(
                f"Kafka at {self._servers} does not allow tidegate to {what}: {denied.str()}. "
                "Grant the job's principal the right, or correct the credentials in "
                "kafka.properties."
            )
        if code in _UNREACHABLE:
            return self._unreachable(what)
        if code in _ABSENT:
            return self._absent(what)
        return KafkaError(f"Kafka at {self._servers} could not {what}: {cause.str()}")

    def _absent(self, what: str) -> TopicAbsentError:
        return TopicAbsentError(
            f"Kafka at {self._servers} could not {what}: there is no such topic or partition. "
            "Create it (tidegate kafka topics create), or correct its name."
        )

    def _unreachable(self, what: str) -> KafkaUnavailableError:
        return KafkaUnavailableError(
            f"No Kafka broker of {self._servers} (kafka.bootstrap_servers) answered when asked to "
            f"{what}. {why_unreachable(self._servers, self._protocol)}"
        )


def _is_retriable(cause: Any) -> bool:
    """Return whether another try may help."""
    return cause.code() in _UNREACHABLE or cause.code() in _ELECTING


def _has_no_leader(answer: Future[Any] | None) -> bool:
    """Return whether the client's answer for a partition is that it has no leader."""
    error = answer.exception() if answer is not None and answer.done() else None
    return isinstance(error, KafkaException) and error.args[0].code() == Code._NOENT


def _is_denial(code: int, reason: int) -> bool:
    """Return whether the client found no leaders because the principal may not see them."""
    return code == Code._NOENT and reason in _DENIED


def configs_of(
    kind: Any,
) -> Callable[[AdminClient, list[str], float], dict[str, Future[Any]]]:
    """Return a function that asks for the configuration of topics or brokers."""

    def ask(client: AdminClient, names: list[str], left_s: float) -> dict[str, Future[Any]]:
        resources = [ConfigResource(kind, name) for name in names]
        futures: dict[str, Future[Any]] = {}
        for resource in resources:  # the client refuses one request for several brokers
            asked = client.describe_configs([resource], request_timeout=left_s)
            futures[resource.name] = asked[resource]
        return futures

    return ask


def _reason(denied: Any) -> str:
    """Return the broker's message without the client's own name and address before it."""
    text: str = denied.str()
    return text.rpartition(": ")[2].partition(" (after ")[0]


def _for_admin(settings: Mapping[str, str]) -> dict[str, str]:
    return {"socket.connection.setup.timeout.ms": "5000", **settings}
