"""A proxy in front of one broker's listener that picks single Kafka requests and spoils them.

It reads frames, by the length that Kafka puts before each message, and the head of every request:
which kind it is, in which version. A rule says what becomes of each:

    PASS        it is delivered, and so is its answer
    LOSE        it is delivered and carried out; its answer is lost, with the connection
    Told        it never reaches the broker; the client is told this error all the same, or that it
                was written, when the next request for the same partition was delivered

What reaches the broker is carried out by the broker alone, so every error that follows is its own.
Unlike `chaos/proxy.py`, which knows only bytes, it can strike one request of those that are under
way on a connection: that is what a sequence of records needs to have a hole.
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
TOLD_AFTER_S: Final = 0.3
"""What was kept is answered after this time where no further request for the partition comes."""
BASE_SEQUENCE: Final = struct.Struct(">53xi")
"""Of a batch of records in Kafka's format 2: the sequence number of its first record."""


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request, and its bytes without the length."""

    kind: int
    version: int
    correlation: int
    body: bytes

    def produced(self) -> Any:
        """Of a Produce request: kafka-python's view of it."""
        return ProduceRequest.decode(self.body, version=self.version, header=True)

    def partitions(self) -> frozenset[tuple[str, int]]:
        """Of a Produce request: what it writes to."""
        topics = self.produced().topic_data
        return frozenset(
            (topic.name, row.index) for topic in topics for row in topic.partition_data
        )

    def begins(self) -> bool:
        """Of a Produce request: whether a batch of it is its producer's first for a partition."""
        rows = (row for topic in self.produced().topic_data for row in topic.partition_data)
        return any(BASE_SEQUENCE.unpack_from(row.records)[0] == 0 for row in rows)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer that the broker did not give: this error for every partition of a Produce.

    `NOT_LEADER` is what a leader says that has just moved. `WRITTEN` is what one says that loses
    the records afterwards, in an unclean election.
    """

    error: int


PASS: Final = "pass"
LOSE: Final = "lose"
Fate = str | Told
Rule = Callable[[Request], Fate]


def pass_all(_: Request) -> Fate:
    """The rule of a proxy that meddles with nothing."""
    return PASS


class Meddler:
    """One listening port. A context manager."""

    def __init__(self) -> None:
        self.rule: Rule = pass_all
        self.target = ""
        """`host:port` of the listener; known only when the broker has its ports."""
        self.produce_errors: list[int] = []
        """What the broker itself has answered to Produce requests, by code, 0 left out."""
        self.lost = 0
        """Answers that were lost."""
        self.kept = 0
        """Requests that did not reach the broker."""
        self.overtaken = 0
        """Requests that did, while one for the same partition before them was not answered."""
        self._server = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, name="meddler", daemon=True).start()

    def close(self) -> None:
        """Accept nobody any more; connections end with either side."""
        self._server.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
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
                client.close()  # as a broker that is not up
                continue
            pipe = _Pipe(self, client, broker)
            for way in (pipe.requests, pipe.answers):
                threading.Thread(target=way, name="meddler", daemon=True).start()


@dataclass(slots=True)
class _Pipe:
    """A client's connection and the one to the broker behind it."""

    meddler: Meddler
    client: socket.socket
    broker: socket.socket
    asked: dict[int, Request] = field(default_factory=dict)
    losing: set[int] = field(default_factory=set)
    kept: list[tuple[Request, int]] = field(default_factory=list)
    """Not told yet."""
    writing: threading.Lock = field(default_factory=threading.Lock)

    def requests(self) -> None:
        """From the client to the broker."""
        with suppress(OSError):
            while body := _read(self.client):
                kind, version, correlation = struct.unpack_from(">hhi", body)
                request = Request(kind, version, correlation, body)
                fate = self.meddler.rule(request)
                if isinstance(fate, Told):
                    self._keep(request, fate.error)
                    continue
                self.asked[correlation] = request
                if fate == LOSE:
                    self.losing.add(correlation)
                self.broker.sendall(_framed(body))
                if kind == PRODUCE and self.kept:
                    self.meddler.overtaken += self._tell_kept(request.partitions())
        self._end()

    def answers(self) -> None:
        """From the broker to the client."""
        with suppress(OSError):
            while body := _read(self.broker):
                (correlation,) = struct.unpack_from(">i", body)
                request = self.asked.pop(correlation)
                if correlation in self.losing:
                    self.meddler.lost += 1
                    break
                if request.kind == PRODUCE:
                    self.meddler.produce_errors += _errors(body, request.version)
                self._tell(body)
        self._end()

    def _keep(self, request: Request, error: int) -> None:
        self.meddler.kept += 1
        self.kept.append((request, error))
        late = threading.Timer(TOLD_AFTER_S, self._tell_kept, (request.partitions(),))
        late.daemon = True
        late.start()

    def _tell_kept(self, partitions: frozenset[tuple[str, int]]) -> int:
        """Answer what was kept of these partitions, each once; how many."""
        with self.writing:
            told = [each for each in self.kept if each[0].partitions() & partitions]
            self.kept = [each for each in self.kept if each not in told]
        with suppress(OSError):  # the connection may have ended meanwhile
            for request, error in told:
                self._tell(_answer(request, error))
        return len(told)

    def _tell(self, body: bytes) -> None:
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
    """The next message; nothing at the end."""
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
