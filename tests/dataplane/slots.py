"""All slots of a job in one thread: real chains, channels and codecs over a network in memory.

State is in memory and sinks keep the bytes that they would send. There are no barriers: what is
tested with it is what happens to records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

from tests.dataplane.channels.parts import Network, no_loss
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.pipeline import Pipeline, build
from tidegate.api.state.keys import key_encoder
from tidegate.api.state.wire import column_codec
from tidegate.api.steps.step_state import step_state
from tidegate.dataplane.chain import ChainOutputs, OperatorChain
from tidegate.dataplane.channels.slot_channels import SlotChannels
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.encoding import BatchEncoder
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import Node
from tidegate.ids import Uid, VertexId
from tidegate.stream_elements import RecordBatch, TopicPartition
from tidegate.testing.cells import CellsByKey

CREDITS = 8


class KeptSink:
    """Encodes a batch as the real sink does, and keeps the bytes of its values."""

    def __init__(self, node: Node, refusals: Refusals, kept: list[bytes | None]) -> None:
        sink = cast("KafkaSink[Any]", node.declaration)
        self._encoder = BatchEncoder(sink, Uid(node.id), refusals)
        self._kept = kept

    def open(self) -> None:
        """Nothing to open."""

    def write(self, batch: RecordBatch) -> None:
        self._kept.extend(self._encoder.encode(batch).values)

    def writable(self) -> bool:
        return True

    def prepare(self, *_: object, **__: object) -> None:
        raise NotImplementedError

    def ended(self, *_: object) -> None:
        raise NotImplementedError

    def freed(self, *_: object) -> None:
        raise NotImplementedError


class RunningSlots:
    """The slots of `pipeline` at a parallelism."""

    def __init__(self, pipeline: type[Pipeline], parallelism: int) -> None:
        self._name, self._graph = pipeline.__name__, build(pipeline, {})
        self._plan = plan(self._graph, parallelism, 128)
        self._network = Network()
        self.written: dict[str, list[bytes | None]] = defaultdict(list)
        exchanges = [self._network.exchange(ordinal) for ordinal in range(parallelism)]
        self._slots = [
            SlotChannels(
                self._plan,
                self._graph,
                ordinal=ordinal,
                initial_credit=CREDITS,
                exchange=exchange,
                column_codec=column_codec,
                key_encoder=key_encoder,
            )
            for ordinal, exchange in enumerate(exchanges)
        ]
        addresses = [exchange.address for exchange in exchanges]
        for slot in self._slots:
            slot.connect(addresses, post=lambda action: action(), on_lost=no_loss)
        self._chains = [
            {vertex.id: self._chain(slot, vertex.id) for vertex in self._plan.vertices}
            for slot in self._slots
        ]

    def push(self, ordinal: int, source: str, values: Sequence[object], first: int = 0) -> None:
        """A batch arrives at the source of one slot, and goes all the way."""
        offsets = range(first, first + len(values))
        batch = RecordBatch(list(values), offsets, TopicPartition(source, ordinal))
        self._chains[ordinal][VertexId(source)].from_source()(batch)
        self._run()

    def chains(self) -> list[OperatorChain]:
        """The chains of all slots."""
        return [chain for chains in self._chains for chain in chains.values()]

    def _chain(self, slot: SlotChannels, vertex_id: VertexId) -> OperatorChain:
        chain_outputs = ChainOutputs(
            record_writers=slot.record_writers(vertex_id),
            make_sink=self._sink,
            make_state=self._state,
        )
        chain = OperatorChain(self._name, self._graph, self._plan.vertex(vertex_id), chain_outputs)
        chain.open()
        return chain

    def _sink(self, node: Node, refusals: Refusals) -> KeptSink:
        return KeptSink(node, refusals, self.written[node.id])

    def _state(self, node: Node) -> CellsByKey:
        declared = step_state(node)
        return CellsByKey(declared.states, declared.key_type, node.id)

    def _run(self) -> None:
        """Deliver frames and take batches off the gates until nothing is under way."""
        moved = True
        while moved:
            moved = False
            for slot, chains in zip(self._slots, self._chains, strict=True):
                for vertex_id, chain in chains.items():
                    gate = slot.gate(vertex_id)
                    while (found := gate.next_element()) is not None:
                        assert isinstance(found[1], RecordBatch)
                        chain.entry()(found[1])
                        moved = True
                    for record_writer in chain.record_writers:
                        record_writer.flush()
            moved = bool(self._network.deliver()) or moved
