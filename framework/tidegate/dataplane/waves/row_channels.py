"""The channels of a task of a wave: rows come in, rows go out.

Credit is unlimited. The frames that a task sends leave with its rows. The frames that it receives
are processed before the next row is read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.channels.plan_channels import PlanChannels
from tidegate.dataplane.channels.record_writer import OutputChannel, RemoteOutputChannel
from tidegate.dataplane.waves.sending import RowSender
from tidegate.graph.plan import PhysicalPlan, PlanEdge, Vertex
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import SubtaskIndex


class RowChannels(PlanChannels):
    """The input gates and record writers of one task. `inputs` are by edge and sender."""

    def __init__(
        self,
        plan: PhysicalPlan,
        graph: StreamGraph,
        *,
        ordinal: int,
        vertices: Sequence[Vertex],
        sender: RowSender,
    ) -> None:
        self._sender = sender
        self.inputs: dict[tuple[int, int], InputChannel] = {}
        super().__init__(plan, graph, ordinal=ordinal, vertices=vertices)

    def _input(self, edge: PlanEdge, sender: SubtaskIndex) -> InputChannel:
        channel = InputChannel(edge, sender, sys.maxsize, self._codec(edge))
        self.inputs[edge.index, sender] = channel
        return channel

    def _channel(self, edge: PlanEdge, receiver: SubtaskIndex) -> OutputChannel:
        self._sender.open(edge.index, receiver)
        send = partial(self._sender.send, edge.index, receiver)
        return RemoteOutputChannel(self._codec(edge), sys.maxsize, send)
