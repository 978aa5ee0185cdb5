"""All channels of one slot: made from the plan, joined to the exchange.

Subtask i of every vertex lives in the job's slot i, so a channel from subtask s to subtask r is
local where s = r and goes over the connection between slots s and r otherwise. On that connection
the edge's index is the channel number: what comes from slot s on number e is either a frame of the
channel (e, s, here) or credit for the channel (e, here, s), and its kind says which. Both slots
compute the same channels from the same plan; nothing is negotiated.

`slot` makes one per attempt and connects it; `dataplane/task` takes gates and outlets from it. All
in the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tidegate.api import keys, wire
from tidegate.api.keys import KeyEncoder
from tidegate.dataplane.channels.frames import (
    ColumnCodec,
    FrameCodec,
    FrameKind,
    credit_frame,
    frame_kind,
    read_control,
    read_credit,
)
from tidegate.dataplane.channels.inbox import InputChannel, InputGate
from tidegate.dataplane.channels.outlet import (
    ForwardOutlet,
    KeyOutlet,
    LocalChannel,
    Outlet,
    OutputChannel,
    RemoteChannel,
)
from tidegate.errors import ExchangeError, InternalError, check
from tidegate.graph.logical import Edge, Graph
from tidegate.graph.plan import PhysicalPlan, PlanEdge
from tidegate.ids import SubtaskIndex, VertexId
from tidegate.ports.exchange import Exchange, Frame


class SlotChannels:
    """The gates and outlets of the subtasks with index `ordinal`.

    `channel_credits` bounds each channel: frames under way between slots, batches within one.
    `column_codec` and `key_encoder` are asked once per edge, with its record type and its key type.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: Graph,
        *,
        ordinal: int,
        channel_credits: int,
        exchange: Exchange,
        column_codec: Callable[[object], ColumnCodec] = wire.column_codec,
        key_encoder: Callable[[object], KeyEncoder] = keys.key_encoder,
    ) -> None:
        self._plan = plan
        self._graph = graph
        self._here = SubtaskIndex(ordinal)
        self._credits = channel_credits
        self._exchange = exchange
        self._column_codec = column_codec
        self._key_encoder = key_encoder
        self._codecs: dict[int, FrameCodec] = {}
        self._inputs: dict[tuple[int, int], InputChannel] = {}  # by edge and sender
        self._remote: dict[tuple[int, int], RemoteChannel] = {}  # by edge and receiver
        # All inputs first: the local channels of outlets end in them.
        self._gates = {
            vertex.id: InputGate(
                [
                    self._input(edge, sender)
                    for edge in plan.inputs_of(vertex.id)
                    for sender in self._senders(edge)
                ]
            )
            for vertex in plan.vertices
        }
        self._outlets = {
            vertex.id: [(edge, self._outlet(edge)) for edge in plan.outputs_of(vertex.id)]
            for vertex in plan.vertices
        }

    def gate(self, vertex_id: VertexId) -> InputGate:
        """The input gate of this slot's subtask of a vertex; a source's has no channels."""
        return self._gates[vertex_id]

    def outlets(self, vertex_id: VertexId) -> list[tuple[PlanEdge, Outlet]]:
        """The outgoing edges of this slot's subtask of a vertex, by edge index."""
        return self._outlets[vertex_id]

    def connect(
        self,
        peers: Sequence[str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_lost: Callable[[int, ExchangeError], None],
    ) -> None:
        """Join the slots that this one exchanges with; `peers` are the addresses by ordinal.

        `on_lost` gets the peer's ordinal, in the mailbox thread: the attempt is over. A plan
        without an exchange connects to nobody.
        """
        others = {peer for _, peer in self._inputs} | {peer for _, peer in self._remote}
        others.discard(self._here)
        self._exchange.connect(
            {peer: peers[peer] for peer in sorted(others)},
            post=post,
            on_frames=self.on_frames,
            on_lost=on_lost,
        )

    def on_frames(self, peer: int, frames: list[Frame]) -> None:
        """Frames came from a slot; ExchangeError for one that no channel expects."""
        for number, payload in frames:
            kind = frame_kind(payload)
            channels = self._remote if kind is FrameKind.CREDIT else self._inputs
            if peer == self._here or (number, peer) not in channels:
                raise ExchangeError(
                    f"slot {peer} sent a frame of kind {kind.name} on channel {number}, which slot "
                    f"{self._here} does not have; the attempt ends and the job is restored"
                )
            match kind:
                case FrameKind.DATA:
                    self._inputs[number, peer].offer_frame(payload)
                case FrameKind.CREDIT:
                    self._remote[number, peer].grant(read_credit(payload))
                case FrameKind.BARRIER | FrameKind.END_OF_INPUT:
                    self._inputs[number, peer].offer(read_control(payload))

    def _senders(self, edge: PlanEdge) -> list[SubtaskIndex]:
        channels = self._plan.channels(edge)
        return [channel.sender for channel in channels if channel.receiver == self._here]

    def _receivers(self, edge: PlanEdge) -> list[SubtaskIndex]:
        channels = self._plan.channels(edge)
        return [channel.receiver for channel in channels if channel.sender == self._here]

    def _input(self, edge: PlanEdge, sender: SubtaskIndex) -> InputChannel:
        if sender == self._here:
            channel = InputChannel(edge, sender, self._credits)
        else:
            grant = partial(self._send_credit, sender, edge.index)
            channel = InputChannel(edge, sender, self._credits, self._codec(edge), grant)
        self._inputs[edge.index, sender] = channel
        return channel

    def _outlet(self, edge: PlanEdge) -> Outlet:
        receivers = self._receivers(edge)
        channels = [self._channel(edge, receiver) for receiver in receivers]
        if len(channels) == 1:
            return ForwardOutlet(channels[0])
        declared = self._declared(edge)
        check(receivers == list(range(len(receivers))), "receivers are not in order")
        if edge.exchange != "key" or declared.key is None:
            raise InternalError(f"the edge {_name(edge)} has many receivers and no key")
        return KeyOutlet(
            declared.key,
            self._key_encoder(declared.key_type),
            self._plan.max_parallelism,
            channels,
            step=edge.source_node,
        )

    def _channel(self, edge: PlanEdge, receiver: SubtaskIndex) -> OutputChannel:
        if receiver == self._here:
            return LocalChannel(self._inputs[edge.index, self._here])
        send = partial(self._exchange.send, receiver, edge.index)
        channel = RemoteChannel(self._codec(edge), self._credits, send)
        self._remote[edge.index, receiver] = channel
        return channel

    def _codec(self, edge: PlanEdge) -> FrameCodec:
        codec = self._codecs.get(edge.index)
        if codec is None:
            column = self._column_codec(self._declared(edge).record_type)
            codec = self._codecs[edge.index] = FrameCodec(_name(edge), edge.source_node, column)
        return codec

    def _declared(self, edge: PlanEdge) -> Edge:
        return self._graph.nodes[edge.target_node].inputs[edge.input]

    def _send_credit(self, sender: SubtaskIndex, number: int, frames: int) -> None:
        self._exchange.send(sender, number, (credit_frame(frames),))


def _name(edge: PlanEdge) -> str:
    return f"{edge.source_node} -> {edge.target_node}"
