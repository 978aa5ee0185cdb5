"""Asks a starting broker whether it is ready, in Kafka's own protocol and with only a socket.

A cluster is ready when the metadata of every node lists every node, and the coordinators of
transactions and of groups answer. Their first lookup creates their topics. That takes a second,
which the first transaction would otherwise have to wait. The requests are old, fixed versions
(Metadata 1, FindCoordinator 1, InitProducerId 0), which brokers from 2.0 to 4.3 support. So no
client library must be imported to start a broker. This module is a probe and not a client.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tidegate.drivers.kafka.broker_config import HOST
from tidegate.message_text import counted

METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID = 3, 10, 22
GROUP, TRANSACTION = 0, 1  # kinds of coordinators
POLL_S = 0.05  # a node answers 0.9 to 1.5 s after its start
REQUEST_TIMEOUT_S = 5.0
RESPONSE_BYTES_MAX = 1 << 20  # a probe's answer has some hundred bytes
KEY = "tidegate-ready"

_ReadinessCheck = Callable[[], bool]


class Unready(NamedTuple):
    """The first question that a broker did not answer in time."""

    port: int
    """The client port of the broker."""
    what: str
    """The end of a sentence whose subject is the broker."""


def wait_ready(
    ports: Sequence[int], *, warm: bool, timeout_s: float, still_alive: Callable[[], None]
) -> Unready | None:
    """Wait until the brokers on `ports` are ready. Return None then, or after `timeout_s` seconds
    the question that was still open.

    With `warm`, the coordinators must answer too. `still_alive` is called between questions and
    raises an error if a further wait is useless.
    """
    deadline = time.monotonic() + timeout_s
    for port, what, ask in _readiness_checks(ports, warm=warm):
        while not _holds(ask):
            still_alive()
            if time.monotonic() > deadline:
                return Unready(port, what)
            time.sleep(POLL_S)
    return None


def _readiness_checks(
    ports: Sequence[int], *, warm: bool
) -> Iterator[tuple[int, str, _ReadinessCheck]]:
    alone = "did not answer"
    known = alone if len(ports) == 1 else f"{alone}, or did not list {counted(len(ports), 'node')},"
    for port in ports:
        yield port, known, partial(_knows_nodes, port, len(ports))
    if warm:
        first = ports[0]
        for what, kind in (("transactions", TRANSACTION), ("groups", GROUP)):
            found = partial(_coordinator_answers, first, kind)
            yield first, f"did not find the coordinator of {what}", found
        yield first, "did not give a producer id", partial(_gives_producer_ids, first)


def _holds(check: _ReadinessCheck) -> bool:
    try:
        return check()
    except (OSError, struct.error):
        return False  # the broker does not listen yet, or it closed the connection


def _knows_nodes(port: int, nodes: int) -> bool:
    # An array of length 0 asks for no topic. The metadata may list more nodes than expected: a
    # killed node stays in it until its session ends.
    answer = _ask(port, METADATA, 1, struct.pack(">i", 0))
    (count,) = struct.unpack_from(">i", answer, 0)
    return bool(count >= nodes)


def _coordinator_answers(port: int, kind: int) -> bool:
    answer = _ask(port, FIND_COORDINATOR, 1, _string(KEY) + struct.pack(">b", kind))
    _throttled_ms, error = struct.unpack_from(">ih", answer, 0)
    return bool(error == 0)


def _gives_producer_ids(port: int) -> bool:
    # Without a transactional id (length -1), the request only uses up a producer id.
    answer = _ask(port, INIT_PRODUCER_ID, 0, struct.pack(">hi", -1, 60_000))
    _throttled_ms, error = struct.unpack_from(">ih", answer, 0)
    return bool(error == 0)


def _ask(port: int, api: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhi", api, version, 1) + _string(KEY) + body
    with socket.create_connection((HOST, port), timeout=REQUEST_TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 4 <= size <= RESPONSE_BYTES_MAX:  # noqa: PLR2004 - the correlation id alone
            message = f"an answer of {size} bytes is not Kafka's"
            raise ConnectionError(message)
        return _read(connection, size)[4:]


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            message = "closed in the middle of an answer"
            raise ConnectionError(message)
        parts += part
    return bytes(parts)


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack(">h", len(raw)) + raw
