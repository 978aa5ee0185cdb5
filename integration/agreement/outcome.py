"""The outcome of a run: the records of each sink, and the state of its last checkpoint.

State is read as a restore reads it. The files that the manifest lists are checked by size and
checksum and placed in a folder, and all key groups of a step go into one store. The pairs of that
store do not depend on the parallelism or the backend of the run, because keys and values have one
encoding.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import msgspec
from confluent_kafka import Message

from integration.agreement.cases import Case, Messages
from integration.support.brokers import read_all
from tidegate.api.connectors.kafka_records import STEP
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.windows.window_step import WINDOW_TABLES
from tidegate.checkpoint.manifest import Manifest, decode_manifest
from tidegate.dataplane.state.layout import name_part
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.dataplane.state.snapshots import restore
from tidegate.drivers.system import SystemDrivers
from tidegate.graph.operator_kinds import operator_kind
from tidegate.graph.stream_graph import StreamGraph
from tidegate.ids import Uid

BACKEND: Final = "memory"
"""State backend of the store into which the state is read."""

State = dict[bytes, bytes]

_FOLDER = re.compile(rb"\(.*/")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one run.

    `lossy`: the run was killed, so that a sink without a guarantee may lack records.
    """

    how: str
    messages: dict[str, list[Message]]
    """Records by sink."""
    state: dict[str, State]
    """State by the uid of a step."""
    positions: dict[tuple[str, str, int], int]
    """The next offset of each source, topic and partition."""
    lossy: bool = False
    drained: dict[str, list[Message]] = field(default_factory=dict)
    """Records by sink after the job has drained, if its case is a drawn pipeline."""


@dataclass(slots=True)
class Differences:
    """The reasons why two outcomes do not agree. The list is empty if they agree."""

    found: list[str] = field(default_factory=list)

    def add(self, where: str, one: object, other: object) -> None:
        """Note a difference, shortened to 300 characters for each side."""
        if one != other:
            self.found.append(f"{where}: {str(one)[:300]}\n    and not {str(other)[:300]}")


def manifests(folder: Path) -> list[Manifest]:
    """Return the manifests in a job's folder of the checkpoint storage, oldest first."""
    found = [decode_manifest(path.read_bytes(), str(path)) for path in folder.glob("manifests/*")]
    return sorted(found, key=lambda manifest: manifest.checkpoint)


def take_outcome(
    how: str,
    graph: StreamGraph,
    storage: Path,
    bootstrap: str,
    topics: Mapping[str, str],
    *,
    lossy: bool = False,
) -> Outcome:
    """Return the outcome of the job of `graph`. `topics` are by sink."""
    manifest = manifests(storage / graph.name)[-1]
    return Outcome(
        how=how,
        messages=read_sinks(bootstrap, topics),
        state=read_states(manifest, storage, graph),
        positions={
            (split.source, split.topic, split.partition): split.offset for split in manifest.splits
        },
        lossy=lossy,
    )


def read_states(manifest: Manifest, storage: Path, graph: StreamGraph) -> dict[str, State]:
    """Return the state of each keyed step, by its uid."""
    return {
        node.id: state_of(manifest, storage, Uid(node.id))
        for node in graph
        if operator_kind(node.kind).keyed
    }


def read_sinks(bootstrap: str, topics: Mapping[str, str]) -> dict[str, list[Message]]:
    """Return the records of each sink."""
    with ThreadPoolExecutor() as pool:
        read = pool.map(partial(read_all, bootstrap), topics.values())
        return dict(zip(topics, read, strict=True))


_TABLES: Final = name_part(WINDOW_TABLES)
_NUMBER_BYTES: Final = 8


def _in_windows(pairs: Iterable[tuple[bytes, bytes]]) -> State:
    """Return the pairs of a store, with one pair for each window in place of chunks of windows.

    A chunk depends on the times of checkpoints. It is a byte and a list of windows, each of which
    begins with its key. Its store key ends with its number, and the chunk with the highest counts.
    A tombstone is a window that ends before it begins. It stands for a key without sessions.
    """
    found: State = {}
    for store_key, data in pairs:
        if is_chunk(store_key):
            for window in windows_of_chunk(data):
                place = store_key[:-_NUMBER_BYTES] + msgspec.msgpack.encode(window[0])
                found[place] = msgspec.msgpack.encode(window)
                if window[2] < window[1]:
                    del found[place]
        else:
            found[store_key] = data
    return found


def state_of(manifest: Manifest, storage: Path, uid: Uid) -> State:
    """Return all pairs of a step's state, with one pair for each window."""
    return _in_windows(stored_pairs(manifest, storage, uid))


def stored_pairs(manifest: Manifest, storage: Path, uid: Uid) -> list[tuple[bytes, bytes]]:
    """Return all pairs of a step's state as they are stored."""
    drivers = SystemDrivers()
    keyed = [keyed for part in manifest.subtasks for keyed in part.keyed if keyed.uid == uid]
    with tempfile.TemporaryDirectory() as folder:
        restored = restore(
            keyed,
            uid=uid,
            key_groups=range(manifest.plan.max_parallelism),
            backend=BACKEND,
            job=manifest.job,
            blobs=drivers.blob_store(str(storage)),
            local=LocalStateFiles(),
            directory=Path(folder),
            open_store=drivers.kv_store,
        )
        try:
            return list(restored.store.scan(b"", b"\xff\xff"))
        finally:
            restored.store.close()


def windows_of_chunk(data: bytes) -> list[list[Any]]:
    """Return the windows of a chunk. Each begins with its key, its begin and its end."""
    windows: list[list[Any]] = msgspec.msgpack.decode(data[1:])
    return windows


def is_chunk(store_key: bytes) -> bool:
    """Return whether the store key is that of a chunk of windows."""
    return store_key[2:].startswith(_TABLES)


# --- comparison ---------------------------------------------------------------------------------


def differences(case: Case, graph: StreamGraph, outcome: Outcome, reference: Outcome) -> list[str]:
    """Return the differences between a run and the reference. The list is empty if they agree."""
    differ = Differences()
    differ.add("positions", outcome.positions, reference.positions)
    for uid, expected in reference.state.items():
        if uid not in case.state_interleaves:
            compare_state(differ, uid, outcome.state[uid], expected)
    for sink in reference.messages:
        _compare_sink(differ, case, graph, sink, outcome, reference)
    return [f"{outcome.how} against {reference.how}, {each}" for each in differ.found]


def imbalance(case: Case, outcome: Outcome, inputs: Messages) -> list[str]:
    """Return the differences between the inputs of a run and its outputs, as the case's balance
    sees them.
    """
    differ = Differences()
    if case.balance is not None:
        given = case.balance.of_outputs(outcome.messages)
        taken = case.balance.of_inputs(inputs)
        differ.add("outputs against inputs", *_multisets(given, taken))
    return [f"{outcome.how}, {each}" for each in differ.found]


def compare_state(differ: Differences, uid: str, state: State, expected: State) -> None:
    """Note the differences between the states of a step after two runs."""
    differ.add(f"keys of the state of {uid}", sorted(state), sorted(expected))
    for key in sorted(state.keys() & expected.keys()):
        differ.add(f"state of {uid}, key {key!r}", state[key], expected[key])


def _compare_sink(
    differ: Differences,
    case: Case,
    graph: StreamGraph,
    sink: str,
    outcome: Outcome,
    reference: Outcome,
) -> None:
    messages, expected = outcome.messages[sink], reference.messages[sink]
    declaration = graph.nodes[sink].declaration
    if not isinstance(declaration, KafkaSink):
        raise TypeError(f"{sink} is no sink")
    interleaves = case.interleaves.get(sink)
    if interleaves is not None:
        for of in interleaves.compared:
            differ.add(f"sink {sink}", *_multisets(map(of, messages), map(of, expected)))
        return
    with_time = sink in case.timestamps
    if declaration.guarantee == "exactly_once":
        found, due = (_grouped(case, sink, each, with_time) for each in (messages, expected))
        differ.add(f"groups of sink {sink}", sorted(found, key=repr), sorted(due, key=repr))
        for group in found.keys() & due.keys():
            differ.add(f"sink {sink}, group {group!r}", found[group], due[group])
        return
    found_set, due_set = (
        {content(message, with_time) for message in each} for each in (messages, expected)
    )
    if declaration.guarantee == "none" and outcome.lossy:
        due_set &= found_set
    differ.add(f"sink {sink}", sorted(found_set - due_set), sorted(due_set - found_set))


def _multisets(one: Any, other: Any) -> tuple[object, object]:
    """Return the elements that only the first has, and those that only the second has."""
    found, due = Counter(one), Counter(other)
    return sorted((found - due).elements(), key=repr), sorted((due - found).elements(), key=repr)


def _key(message: Message) -> object:
    return message.key()


def _grouped(
    case: Case, sink: str, messages: list[Message], with_time: bool
) -> dict[object, list[object]]:
    of = case.groups.get(sink, _key)
    groups: dict[object, list[object]] = defaultdict(list)
    for message in messages:
        groups[of(message)].append(content(message, with_time))
    return groups


def content(message: Message, with_time: bool) -> tuple[Any, ...]:
    """Return the parts of a record that are compared.

    A dead letter holds the file of its step, relative to the folder of the process. The folder is
    not the same in all runs, so it is removed.
    """
    headers = tuple(
        (name, _FOLDER.sub(b"(", value) if name == STEP and value else value)
        for name, value in _headers(message)
    )
    timestamp = message.timestamp()[1] if with_time else None
    return message.key(), message.value(), headers, timestamp


def _headers(message: Message) -> list[tuple[str, Any]]:
    return cast("list[tuple[str, Any]]", message.headers() or [])
