"""All channels of one slot, made from the plan and connected to the exchange.

Subtask i of every vertex runs in the job's slot i. A channel from subtask s to subtask r is
therefore local if s = r. Otherwise it uses the connection between slots s and r. The edge's index
is the channel number on that connection. A frame that comes from slot s with number e has one of
two meanings, which its kind decides. It is a frame of the channel (e, s, here), or credit for the
channel (e, here, s). Both slots compute the same channels from the same plan, without negotiation.

`slot` makes one object per attempt and connects it. The task builder takes input gates and record
writers from it. All calls come from the mailbox thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tidegate.api.state import keys, wire
from tidegate.api.state.keys import KeyEncoder
from tidegate.dataplane.channels.frames import (
    ColumnCodec,
    FrameKind,
    credit_frame,
    frame_kind,
    read_control,
    read_credit,
)
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.channels.plan_channels import PlanChannels
from tidegate.dataplane.channels.record_writer import (
    LocalOutputChannel,
    OutputChannel,
    RemoteOutputChannel,
)
from tidegate.errors import ExchangeError
from tidegate.graph.plan import PhysicalPlan, PlanEdge
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import SubtaskIndex
from tidegate.ports.exchange import Exchange, Frame


class SlotChannels(PlanChannels):
    """The input gates and record writers of a slot's subtasks.

    `initial_credit` limits each channel: the frames in flight between slots, or the batches that
    wait within one slot.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: StreamGraph,
        *,
        ordinal: int,
        initial_credit: int,
        exchange: Exchange,
        column_codec: Callable[[object], ColumnCodec] = wire.column_codec,
        key_encoder: Callable[[object], KeyEncoder] = keys.key_encoder,
    ) -> None:
        self._initial_credit = initial_credit
        self._exchange = exchange
        self._inputs: dict[tuple[int, int], InputChannel] = {}  # by edge and sender
        self._remote: dict[tuple[int, int], RemoteOutputChannel] = {}  # by edge and receiver
        super().__init__(
            plan, graph, ordinal=ordinal, column_codec=column_codec, key_encoder=key_encoder
        )

    def connect(
        self,
        peers: Sequence[str],
        *,
        post: Callable[[Callable[[], None]], None],
        on_lost: Callable[[int, ExchangeError], None],
    ) -> None:
        """Connect to the slots that this slot exchanges records with. `peers` are the addresses by
        ordinal.

        If a connection is lost, `on_lost` gets the peer's ordinal in the mailbox thread, and the
        attempt is over. A plan without an exchange connects to no slot.
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
        """Process frames from a slot. Raise ExchangeError for a frame that no channel expects."""
        for number, payload in frames:
            kind = frame_kind(payload)
            channels = self._remote if kind is FrameKind.CREDIT else self._inputs
            if peer == self._here or (number, peer) not in channels:
                raise ExchangeError(
                    f"Slot {peer} sent a frame of kind {kind.name} on channel {number}, which slot "
                    f"{self._here} does not have; the attempt ends and the job is restored."
                )
            match kind:
                case FrameKind.DATA:
                    self._inputs[number, peer].offer_frame(payload)
                case FrameKind.CREDIT:
                    self._remote[number, peer].add_credit(read_credit(payload))
                case FrameKind.BARRIER | FrameKind.END_OF_INPUT | FrameKind.WATERMARK:
                    self._inputs[number, peer].put(read_control(payload))

    def _input(self, edge: PlanEdge, sender: SubtaskIndex) -> InputChannel:
        if sender == self._here:
            channel = InputChannel(edge, sender, self._initial_credit)
        else:
            send_credit = partial(self._send_credit, sender, edge.index)
            channel = InputChannel(
                edge, sender, self._initial_credit, self._codec(edge), send_credit
            )
        self._inputs[edge.index, sender] = channel
        return channel

    def _channel(self, edge: PlanEdge, receiver: SubtaskIndex) -> OutputChannel:
        if receiver == self._here:
            return LocalOutputChannel(self._inputs[edge.index, self._here])
        send = partial(self._exchange.send, receiver, edge.index)
        channel = RemoteOutputChannel(self._codec(edge), self._initial_credit, send)
        self._remote[edge.index, receiver] = channel
        return channel

    def _send_credit(self, sender: SubtaskIndex, number: int, frames: int) -> None:
        self._exchange.send(sender, number, (credit_frame(frames),))
