"""What the tests of channels share: a codec without a type, edges, batches, a network in memory."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.dataplane.channels.frames import FrameCodec
from tidegate.errors import ExchangeError
from tidegate.graph.plan import PlanEdge, PlanPartitioning
from tidegate.ids import VertexId
from tidegate.ports.exchange import Frame, OnFrames, OnLost
from tidegate.stream_elements import RecordBatch, TopicPartition

TOPIC_PARTITION = TopicPartition("orders", 3)


class PlainColumn:
    """Any list of plain values as msgpack."""

    def __init__(self) -> None:
        self.encode: Callable[[list[Any]], bytes] = msgspec.msgpack.Encoder().encode
        self.decode: Callable[[bytes | memoryview], list[Any]] = msgspec.msgpack.Decoder(
            list[Any]
        ).decode


def codec() -> FrameCodec:
    return FrameCodec("orders -> totals", "orders", PlainColumn())


def edge(index: int = 0, partitioning: PlanPartitioning = "key") -> PlanEdge:
    return PlanEdge(
        index=index,
        source=VertexId("orders"),
        source_node="orders",
        port="main",
        target=VertexId("totals"),
        target_node="totals",
        input=0,
        partitioning=partitioning,
    )


def batch(first: int, size: int, topic_partition: TopicPartition = TOPIC_PARTITION) -> RecordBatch:
    numbers = list(range(first, first + size))
    return RecordBatch([f"v{number}" for number in numbers], numbers, topic_partition)


class MemoryExchange:
    """One slot's end of a `Network`."""

    def __init__(self, network: Network, ordinal: int) -> None:
        self._network = network
        self._ordinal = ordinal
        self.address = f"memory:{ordinal}"
        self.peers: dict[int, str] | None = None

    def connect(
        self,
        peers: Mapping[int, str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_frames: OnFrames,
        on_lost: OnLost,
    ) -> None:
        self.peers = dict(peers)
        self._network.receivers[self._ordinal] = on_frames

    def send(self, peer: int, channel: int, payload: Sequence[bytes]) -> None:
        self._network.ways[self._ordinal, peer].append((channel, b"".join(payload)))

    def close(self) -> None:
        """Nothing is held."""


class Network:
    """Frames between slots, in order for each pair, delivered when the test says so."""

    def __init__(self) -> None:
        self.ways: dict[tuple[int, int], deque[Frame]] = defaultdict(deque)
        self.receivers: dict[int, OnFrames] = {}

    def exchange(self, ordinal: int) -> MemoryExchange:
        return MemoryExchange(self, ordinal)

    def deliver(self) -> int:
        """Everything that is under way now; how many frames that were."""
        count = 0
        for (sender, receiver), way in list(self.ways.items()):
            frames = list(way)
            way.clear()
            count += len(frames)
            if frames:
                self.receivers[receiver](sender, frames)
        return count


def no_loss(peer: int, error: ExchangeError) -> None:
    raise AssertionError(f"lost {peer}: {error}")
