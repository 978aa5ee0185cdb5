"""A proxy in front of one broker's listener that disturbs single Kafka requests.

The proxy reads frames by the length in front of each Kafka message. It also reads the header of
every request: the kind and the version. A rule decides about each request:

    PASS        the proxy delivers the request and its answer
    LOSE        the proxy delivers the request, but drops its answer and closes the connection
    Told        the request never reaches the broker. The client still gets an answer, which is an
                error or looks as if the request was written. The proxy sends that answer when it
                has delivered the next request for the same partition, or after `ANSWER_DELAY_S_MAX`

Only the broker executes the delivered requests, so every later error is the broker's own. Unlike
`kill_matrix/proxy.py`, which knows only bytes, this proxy can select one of several requests in
flight on a connection. A gap in the sequence numbers of a producer needs exactly that.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from kafka.protocol.producer import ProduceRequest, ProduceResponse

HOST: Final = "127.0.0.1"
PRODUCE: Final = 0
WRITE_TXN_MARKERS: Final = 27
WRITTEN: Final = 0
NOT_LEADER: Final = 6
OUT_OF_ORDER: Final = 45
"""Kafka's codes of requests and errors."""
ANSWER_DELAY_S_MAX: Final = 0.3
"""Longest time before the proxy answers a kept request, in seconds. A further request for the same
partition makes the proxy answer earlier.
"""
BASE_SEQUENCE: Final = struct.Struct(">53xi")
"""The sequence number of the first record of a batch, in Kafka's record format 2."""


@dataclass(frozen=True, slots=True)
class Request:
    """The header of a request, and its bytes without the length."""

    kind: int
    version: int
    correlation: int
    body: bytes

    def produced(self) -> Any:
        """Decode a Produce request with kafka-python."""
        return ProduceRequest.decode(self.body, version=self.version, header=True)

    def partitions(self) -> frozenset[tuple[str, int]]:
        """Return the topics and partitions that a Produce request writes to."""
        topics = self.produced().topic_data
        return frozenset(
            (topic.name, row.index) for topic in topics for row in topic.partition_data
        )

    def is_first_batch(self) -> bool:
        """Return whether a Produce request holds its producer's first batch for a partition."""
        rows = (row for topic in self.produced().topic_data for row in topic.partition_data)
        return any(BASE_SEQUENCE.unpack_from(row.records)[0] == 0 for row in rows)


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An answer that the broker did not give: one error code for every partition of a Produce.

    `NOT_LEADER` is the answer of a broker from which the leadership has just moved. `WRITTEN` is
    the answer of a leader that loses the records afterwards, in an unclean election.
    """

    error: int


PASS: Final = "pass"
LOSE: Final = "lose"
Reaction = str | ErrorAnswer
Rule = Callable[[Request], Reaction]


def pass_all(_: Request) -> Reaction:
    """Pass every request: the rule of a proxy that changes nothing."""
    return PASS


class KafkaProxy:
    """A proxy with one listening port. A context manager."""

    def __init__(self) -> None:
        self.rule: Rule = pass_all
        self.target = ""
        """The broker's listener, `host:port`. It is known only when the broker has its ports."""
        self.produce_errors: list[int] = []
        """Error codes that the broker itself has answered to Produce requests, without 0."""
        self.lost = 0
        """Number of answers that the proxy has dropped."""
        self.kept = 0
        """Number of requests that the proxy has kept from the broker."""
        self.overtaken = 0
        """Number of kept requests for which a later request for the same partition reached the
        broker before the kept request was answered.
        """
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, name="meddler", daemon=True).start()

    def close(self) -> None:
        """Stop accepting connections. A present connection ends when one side closes it."""
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return  # it was closed
            host, _, port = self.target.rpartition(":")
            try:
                broker = socket.create_connection((host, int(port)))
            except OSError:
                client.close()  # the client sees the same as without a broker
                continue
            pipe = _Pipe(self, client, broker)
            for way in (pipe.requests, pipe.answers):
                threading.Thread(target=way, name="meddler", daemon=True).start()


@dataclass(slots=True)
class _Pipe:
    """A client's connection, and the connection to the broker that the proxy opens for it."""

    proxy: KafkaProxy
    client: socket.socket
    broker: socket.socket
    pending: dict[int, Request] = field(default_factory=dict)
    losing: set[int] = field(default_factory=set)
    kept: list[tuple[Request, int]] = field(default_factory=list)
    """Kept requests that are not answered yet, each with its error code."""
    writing: threading.Lock = field(default_factory=threading.Lock)

    def requests(self) -> None:
        """Pass requests from the client to the broker, as the rule says."""
        with suppress(OSError):
            while body := _read(self.client):
                kind, version, correlation = struct.unpack_from(">hhi", body)
                request = Request(kind, version, correlation, body)
                reaction = self.proxy.rule(request)
                if isinstance(reaction, ErrorAnswer):
                    self._keep(request, reaction.error)
                    continue
                self.pending[correlation] = request
                if reaction == LOSE:
                    self.losing.add(correlation)
                self.broker.sendall(_framed(body))
                if kind == PRODUCE and self.kept:
                    self.proxy.overtaken += self._answer_kept(request.partitions())
        self._end()

    def answers(self) -> None:
        """Pass answers from the broker to the client."""
        with suppress(OSError):
            while body := _read(self.broker):
                (correlation,) = struct.unpack_from(">i", body)
                request = self.pending.pop(correlation)
                if correlation in self.losing:
                    self.proxy.lost += 1
                    break
                if request.kind == PRODUCE:
                    self.proxy.produce_errors += _errors(body, request.version)
                self._send_answer(body)
        self._end()

    def _keep(self, request: Request, error: int) -> None:
        self.proxy.kept += 1
        self.kept.append((request, error))
        late = threading.Timer(ANSWER_DELAY_S_MAX, self._answer_kept, (request.partitions(),))
        late.daemon = True
        late.start()

    def _answer_kept(self, partitions: frozenset[tuple[str, int]]) -> int:
        """Answer each kept request for these partitions once, and return their number."""
        with self.writing:
            told = [each for each in self.kept if each[0].partitions() & partitions]
            self.kept = [each for each in self.kept if each not in told]
        with suppress(OSError):  # the connection may have ended meanwhile
            for request, error in told:
                self._send_answer(_answer(request, error))
        return len(told)

    def _send_answer(self, body: bytes) -> None:
        with self.writing:
            self.client.sendall(_framed(body))

    def _end(self) -> None:
        for each in (self.client, self.broker):
            with suppress(OSError):  # the other thread was faster
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _read(source: socket.socket) -> bytes:
    """Read the next message; return empty bytes at the end."""
    head = _exactly(source, 4)
    return _exactly(source, struct.unpack(">i", head)[0]) if head else b""


def _exactly(source: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = source.recv(size - len(found))
        if not more:
            return b""
        found += more
    return bytes(found)


def _errors(body: bytes, version: int) -> list[int]:
    answer = ProduceResponse.decode(body, version=version, header=True)
    codes = [row.error_code for topic in answer.responses for row in topic.partition_responses]
    return [code for code in codes if code]


def _answer(request: Request, error: int) -> bytes:
    topic_answer = ProduceResponse.TopicProduceResponse
    answer = ProduceResponse(
        responses=[
            topic_answer(
                name=topic.name,
                partition_responses=[
                    topic_answer.PartitionProduceResponse(
                        index=row.index,
                        error_code=error,
                        base_offset=-1,
                        log_append_time_ms=-1,
                        log_start_offset=-1,
                        record_errors=[],
                        error_message=None,
                    )
                    for row in topic.partition_data
                ],
            )
            for topic in request.produced().topic_data
        ],
        throttle_time_ms=0,
        version=request.version,
    )
    answer.with_header(correlation_id=request.correlation)
    encoded: bytes = answer.encode(header=True)
    return encoded
