"""Builds the subtasks of a deployment: those of a slot, or those of one level of a wave.

The builder rebuilds the graph from the user's class, compares it with the submitted graph, and
computes the plan from it. For each vertex one subtask gets its reader or gate, its operators, its
restored state and its sinks. A slot runs the builder once per attempt, in the mailbox thread.
Restoring takes as long as the state files take to arrive.

The builder receives the channels and the engine. It does not know slots or processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, cast

from tidegate.api.code.archive import code_cache_folder, install
from tidegate.api.code.rebuild import rebuild
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.pipeline import Pipeline
from tidegate.api.steps.step_state import step_state
from tidegate.api.windows.windows import TZ_DATABASE
from tidegate.checkpoint.alignment import Alignment
from tidegate.config import Config
from tidegate.dataplane.chain import ChainOutputs, OperatorChain
from tidegate.dataplane.channels.input_gate import InputGate
from tidegate.dataplane.channels.record_writer import RecordWriter
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.engine import Engine
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.operators.keyed import KeyedStateLike
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.shared_transaction_admin import SharedTransactionAdmin
from tidegate.dataplane.shared_view import SlotView, check_tz_database, check_view
from tidegate.dataplane.sink_writer import SinkWriter
from tidegate.dataplane.sinks.registry import make_sink_writer
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.sources.kafka import KafkaSourceReader
from tidegate.dataplane.sources.watermarks import SourceWatermarks
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.state.step import open_step_state
from tidegate.dataplane.subtask_context import SubtaskContext
from tidegate.dataplane.task import Task
from tidegate.dataplane.task_interfaces import CheckpointResponder
from tidegate.dataplane.time.valve import WatermarkValve
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.plan import PlanEdge, Vertex, plan
from tidegate.graph.stream_graph import MAIN, Node, StreamGraph
from tidegate.ids import SubtaskId, SubtaskIndex, Uid, VertexId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import TransactionAdmin
from tidegate.private_files import make_private_folder
from tidegate.protocol.messages import Deploy, RestoredState
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.storage_location import locate
from tidegate.stream_elements import MIN_MS, Watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotContext:
    """The objects that the owner of the subtasks gives to all of them."""

    config: Config
    drivers: Drivers
    counters: Counters
    local: Path
    """An empty folder. Each subtask gets its own folder below it."""
    earlier: LocalStateFiles
    engine: Engine
    checkpoint_responder: CheckpointResponder
    run: str = ""
    """Name of this run of the subtasks, see `SubtaskContext.run`."""
    first_transactional_id_index: int = 0
    """Index of the first transactional id of each sink subtask."""
    shared_admin: SharedTransactionAdmin | None = None
    """The source of the subtasks' transaction-admin client. None if others do not share the client.
    """
    ends_input: bool = True
    """Whether a source sends EndOfInput at the ends of its splits. A wave of a backfill ends only
    with a barrier.
    """


class Channels(Protocol):
    """The input gates and the record writers of the subtasks, by vertex."""

    def gate(self, vertex_id: VertexId) -> InputGate: ...
    def record_writers(self, vertex_id: VertexId) -> list[tuple[PlanEdge, RecordWriter]]: ...


class SubtaskBuilder:
    """A builder of the subtasks of one deployment, from a pipeline that is already built.

    `blobs` is the checkpoint storage. `transactions` is the client that sinks describe their
    transactions with.
    """

    every_field = False
    """Whether all fields of every result are checked, not only a sample."""

    def __init__(
        self,
        deploy: Deploy,
        context: SlotContext,
        built: tuple[type[Pipeline], StreamGraph],
        blobs: BlobStore,
        transactions: TransactionAdmin,
    ) -> None:
        self._deploy, self._context = deploy, context
        self._pipeline, self.graph = built
        self._blobs, self._transactions = blobs, transactions
        submission = deploy.submission
        self.plan = plan(self.graph, submission.parallelism, submission.max_parallelism)

    def tasks(self, channels: Channels, vertices: Sequence[Vertex] | None = None) -> list[Task]:
        """Return the subtasks of `vertices`, or of all vertices if it is None.

        Downstream subtasks come first, so that they make room before upstream subtasks read more.
        """
        chosen = self.plan.vertices if vertices is None else vertices
        return [self._task(vertex, channels) for vertex in reversed(chosen)]

    def _task(self, vertex: Vertex, channels: Channels) -> Task:
        subtask_context = self._make_subtask_context(vertex)
        head = self.graph.nodes[vertex.nodes[0]]
        record_writers = channels.record_writers(vertex.id)
        chain = OperatorChain(
            self._pipeline.__name__,
            self.graph,
            vertex,
            ChainOutputs(
                record_writers=record_writers,
                make_sink=lambda node, refusals: self._sink(node, subtask_context, refusals),
                make_state=lambda node: self._state(node, subtask_context),
                counters=subtask_context.counters,
                now_ms=subtask_context.drivers.clock.now_ms,
                restored_watermark_ms=lambda node: self._deploy.watermarks.get(node.id, MIN_MS),
                watermark_interval_ms=subtask_context.config.job.watermark_interval,
                dead_letter_bytes_max=lambda node: subtask_context.record_bytes_max(
                    node.id, cast("KafkaSink[object]", node.declaration).topic, {}
                ),
            ),
            every_field=self.every_field,
        )
        if head.kind == "source":
            receivers = most_receivers(record_writer for _, record_writer in record_writers)
            splits = [split for split in self._deploy.splits if split.source == head.id]
            return self._source_task(
                head,
                subtask_context,
                chain,
                splits,
                receivers=receivers,
                ends_input=self._context.ends_input,
            )
        gate = channels.gate(vertex.id)
        alignment = Alignment(len(gate), self._context.config.checkpoint.mode)
        return InputTask(
            subtask_context,
            chain,
            self._context.checkpoint_responder,
            gate,
            alignment,
            self._valve(gate),
            self._sides(head, gate),
        )

    def _sides(self, head: Node, gate: InputGate) -> list[int]:
        """Return the input of the first step to which each channel leads; empty if it has one."""
        if not operator_kind(head.kind).two_inputs:
            return []
        return [head.inputs[channel.edge.input].side for channel in gate.channels]

    def _valve(self, gate: InputGate) -> WatermarkValve | None:
        """Return the valve of a gate; None if no channel has watermarks, and no step behind needs
        to know whether all channels are idle.

        If some channels have watermarks, the others take no part. The channels of an edge are a
        group if each of its senders gets the same watermarks.
        """
        senders = [channel.edge.source_node for channel in gate.channels]
        has = [self.graph.nodes[sender].watermarks for sender in senders]
        if not any(has):
            tells = all(map(self.graph.tells_time, senders))
            return WatermarkValve([Watermark(MIN_MS)] * len(senders)) if tells else None
        edges = [channel.edge for channel in gate.channels]
        return WatermarkValve(
            [Watermark(MIN_MS) if each else None for each in has],
            [edge.index if self._have_one_watermark(edge) else None for edge in edges],
        )

    def _have_one_watermark(self, edge: PlanEdge) -> bool:
        """Return whether all senders of an edge get the same watermarks: all inputs of their vertex
        go from all subtasks to all subtasks, and no step of it in front of the edge has a time of
        its own.
        """
        inputs = self.plan.inputs_of(edge.source)
        node = self.graph.nodes[edge.source_node]
        while not operator_kind(node.kind).own_time:
            if node.id == self.plan.vertex(edge.source).nodes[0]:
                return bool(inputs) and all(each.partitioning == "key" for each in inputs)
            node = self.graph.nodes[node.inputs[0].node]
        return False

    def _source_task(
        self,
        head: Node,
        subtask_context: SubtaskContext,
        chain: OperatorChain,
        splits: Sequence[SourceSplit],
        *,
        receivers: int,
        ends_input: bool,
    ) -> SourceTask:
        source = cast("KafkaSource[object]", head.declaration)
        keep_keys = source_keys_wanted(self.graph, head.id)
        reader = KafkaSourceReader(
            source, Uid(head.id), subtask_context, keep_keys=keep_keys, receivers=receivers
        )
        watermarks = None
        if source.watermarks is not None:
            watermarks = SourceWatermarks(
                source.watermarks, Uid(head.id), splits, subtask_context.counters
            )
        return SourceTask(
            subtask_context,
            chain,
            self._context.checkpoint_responder,
            reader,
            splits,
            ends_input=ends_input,
            drains=self._deploy.submission.drain,
            fires=any(node.fires for node in self.graph),
            input_over=self._deploy.input_over,
            watermarks=watermarks,
            tells_time=self.graph.tells_time(head.id),
        )

    def _state(self, node: Node, subtask_context: SubtaskContext) -> KeyedStateLike:
        restored = self._deploy.restored.get(node.id, RestoredState(snapshots=()))
        declared = step_state(node)
        return open_step_state(
            subtask_context,
            Uid(node.id),
            declared.states,
            declared.key_type,
            restored.snapshots,
            declared.dropped,
            declared.group_bytes,
        )

    def _sink(self, node: Node, subtask_context: SubtaskContext, refusals: Refusals) -> SinkWriter:
        return make_sink_writer(node, subtask_context, refusals)

    def _local_folder(self, vertex: Vertex) -> Path:
        folder = self._context.local / vertex.id
        make_private_folder(folder, exist_ok=False)
        return folder

    def _make_subtask_context(self, vertex: Vertex) -> SubtaskContext:
        deploy, context = self._deploy, self._context
        subtask = SubtaskId(vertex.id, SubtaskIndex(deploy.ordinal))
        return SubtaskContext(
            job=deploy.job,
            journal_id=deploy.journal_id,
            attempt=deploy.attempt,
            subtask=subtask,
            parallelism=deploy.submission.parallelism,
            max_parallelism=deploy.submission.max_parallelism,
            config=context.config,
            drivers=context.drivers,
            blobs=self._blobs,
            local=self._local_folder(vertex),
            earlier=context.earlier,
            transactions=self._transactions,
            transaction_timeout_ms=deploy.transaction_timeout_ms,
            producer_pool_size=deploy.producer_pool_size,
            transactional_id_indexes=range(
                context.first_transactional_id_index,
                context.first_transactional_id_index + deploy.transactional_ids_per_subtask,
            ),
            post=lambda action: context.engine.post(action, subtask),
            run_io=lambda action: context.engine.run_io(action, subtask),
            fail=lambda error: context.engine.post_failure(error, subtask),
            counters=context.counters,
            max_message_bytes=deploy.max_message_bytes,
            run=context.run,
        )


class TaskBuilder(SubtaskBuilder):
    """The builder in a slot, and in a task of a wave: it loads the submitted pipeline.

    The constructor raises StorageMismatchError or ClusterMismatchError if this host sees another
    storage or Kafka cluster than the JobMaster, and ExternalError if it has another tz database. It
    does so before it loads anything.
    """

    def __init__(self, deploy: Deploy, context: SlotContext) -> None:
        submission, config = deploy.submission, context.config
        storage = locate(config.checkpoint.dir, submission.working_folder)
        blobs: BlobStore = context.drivers.blob_store(storage)
        make = partial(context.drivers.transaction_admin, config.kafka.client_settings())
        shared_admin = context.shared_admin
        transactions: TransactionAdmin = (
            make() if shared_admin is None else shared_admin.of(deploy, make)
        )
        view = SlotView(
            host=context.drivers.process.host,
            storage=storage,
            brokers=config.kafka.bootstrap_servers,
            blobs=blobs,
            transactions=transactions,
        )
        context.counters.restoring = "the claim and the identity of the storage"
        check_tz_database(deploy, view.host, TZ_DATABASE)
        check_view(deploy, view)  # check first: the code below may come from this storage
        if deploy.storage:
            blobs.bind(deploy.storage)
            blobs.confirm()
        code = _installed_code(deploy, context.config, blobs)
        context.counters.restoring = ""
        built = rebuild(
            submission.reference,
            submission.working_folder if code is None else str(code),
            submission.params,
            fingerprint=submission.fingerprint,
            digest=submission.code_digest if code is None else None,
            python_version=submission.python_version,
        )
        super().__init__(deploy, context, built, blobs, transactions)

    def close(self) -> None:
        """Close the clients that only these subtasks share."""
        if self._context.shared_admin is None:
            self._transactions.close()


def _installed_code(deploy: Deploy, config: Config, blobs: BlobStore) -> Path | None:
    """Return the folder of the submission's code on this host; None if the submission has no
    code.
    """
    submission, code = deploy.submission, deploy.submission.code
    if code is None:
        return None
    cache = code_cache_folder(submission.working_folder, config.state.local_dir, submission.job)
    return install(blobs, code.path, code.digest, code.size, cache)


def source_keys_wanted(graph: StreamGraph, node_id: str) -> bool:
    """Return whether records of this step reach a sink without `key_by` through steps only that
    keep the keys.

    Such a sink writes each record with the key that the record was read with.
    """
    for consumer, edge in graph.consumers(node_id):
        if edge.port != MAIN:
            continue  # dead letters carry their own keys
        if consumer.kind == "sink" and consumer.function is None:
            return True
        kind = operator_kind(consumer.kind)
        keeps_keys = kind.fused or not kind.makes_records
        if keeps_keys and source_keys_wanted(graph, consumer.id):
            return True
    return False


def most_receivers(record_writers: Iterable[RecordWriter]) -> int:
    """Return the largest number of subtasks among which a batch is split; 1 if it stays in its
    slot.
    """
    return max((len(record_writer.channels) for record_writer in record_writers), default=1)
