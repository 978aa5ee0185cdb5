"""Keys of a batch before a key edge with a policy for the records that cannot pass it.

A record cannot pass a key edge if its key cannot be computed or encoded. The check in front of the
edge (`operators/checking.py`) has refused the records that another slot would not get as they are.

`chain.py` calls this module before a key edge, and only if the policy lets the job
continue. A chained keyed step gets its keys from this module. A record writer gets only records
that can pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import countOf
from typing import Any, Final, cast

from tidegate.api.records.values import KeyCheck, article, declared_name, key_check
from tidegate.api.state.keys import key_encoder
from tidegate.dataplane.columns import without
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.user_errors import result_error, user_code_error
from tidegate.errors import (
    PipelineError,
    check,
    check_complete,
    passes_through,
    refused_resource,
)
from tidegate.graph.stream_graph import Edge, Node
from tidegate.message_text import clause
from tidegate.stream_elements import RecordBatch
from tidegate.user_exceptions import described, process_ends

KNOWN_KEYS: Final = 1 << 17
"""Number of keys that are remembered as encodable. One more key clears the whole memory."""


class _Encodable(dict[Any, None]):
    """Keys that can be encoded. The lookup of a new key encodes it once; a hit costs no call."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, key: Any) -> None:
        self._encode(key)
        if len(self) >= KNOWN_KEYS:
            self.clear()
        self[key] = None


class StepKeys:
    """The keys of the batches that one input of a step by key gets.

    `refusals` is the policy of the key_by. It is None if the policy is "fail", or if a record
    writer in front of the step applies the policy.
    """

    def __init__(self, pipeline: str, node: Node, refusals: Refusals | None, side: int = 0) -> None:
        edges = [edge for edge in node.inputs if edge.side == side]
        edge = edges[0]
        check(
            edge.key is not None and all(one.key is edge.key for one in edges),
            f"all edges of an input of step {node.id!r} have the key function of its key_by",
        )
        self._pipeline, self._node = pipeline, node
        self._key = cast("Callable[[Any], Any]", edge.key)
        self._check = key_check(edge.key_type)
        self._extractor = None if refusals is None else KeyExtractor(pipeline, node, edge, refusals)

    def of(self, batch: RecordBatch) -> tuple[RecordBatch, list[Any]]:
        """Return the batch without the refused records, and the keys of the other records."""
        if self._extractor is not None:
            return self._extractor.keys(batch)
        # After a shuffle, this computes the keys a second time. `KeyGroupWriter.emit` says why.
        remaining = iter(batch.values)
        try:
            keys = list(map(self._key, remaining))
            check_complete(len(keys), len(batch.values))
        except BaseException as error:
            raise user_code_error(self._pipeline, self._node, batch, remaining, error) from error
        wrong = None if self._check is None else self._check.first_wrong(keys)
        if wrong is None:
            return batch, keys
        declared = declared_name(self._node.inputs[0].key_type)
        what = f"has {article(type(keys[wrong]).__name__)} as key, not {declared}"
        remedy = f"Let key_by give {declared}, or declare the type of the keys."
        raise result_error(self._pipeline, self._node, batch, wrong, what, remedy)

    def lookup_error(
        self, batch: RecordBatch, keys: Sequence[Any], error: BaseException
    ) -> BaseException:
        """Return the error to raise if a lookup by the keys of a batch has raised `error`.

        It is an error of user code if a key cannot be hashed or compared with the keys before it.
        Any other error is returned unchanged.
        """
        if isinstance(error, passes_through()) or refused_resource(error) is not None:
            return error
        index = _first_unusable(keys)
        if index is None:
            return error
        what = f"has a key whose __hash__ or __eq__ raised {clause(described(error))}"
        remedy = "Correct the class of the key."
        return result_error(self._pipeline, self._node, batch, index, what, remedy)


def _first_unusable(keys: Sequence[Any]) -> int | None:
    """Return the index of the first key that no dict takes together with those before it."""
    known: dict[Any, None] = {}
    for index, key in enumerate(keys):
        try:
            known[key] = None
        except process_ends():
            raise
        except BaseException:  # noqa: BLE001  # user code may raise anything
            return index
    return None


class KeyExtractor:
    """The keys of batches on one edge to `node`. The records that cannot pass it are refused.

    An exception of the key function is covered only by a policy of the key_by itself. An inherited
    policy, for example of a source, is meant for bad data and must not hide an error in code.
    """

    def __init__(self, pipeline: str, node: Node, edge: Edge, refusals: Refusals) -> None:
        self._pipeline, self._node = pipeline, node
        self._own_policy = edge.on_error is not None
        self._key = cast("Callable[[Any], Any]", edge.key)
        self._known = _Encodable(key_encoder(edge.key_type))
        self._refusals = refusals
        self._check = KeyCheck(edge.key_type)

    def keys(self, batch: RecordBatch) -> tuple[RecordBatch, list[Any]]:
        """Return the batch without the refused records, and the keys of the other records."""
        try:
            keys = list(map(self._key, batch.values))
            known = countOf(map(self._known.__getitem__, keys), None)  # runs in C and keeps nothing
            # Both counts are too low if user code raised StopIteration, because that ends a `map`.
            right = known == len(keys) == len(batch.values)
            right = right and self._check.first_wrong(keys) is None
        except process_ends():
            raise
        except BaseException:  # noqa: BLE001  # the slow path below finds its record
            right, keys = False, []
        return (batch, keys) if right else self._without_refused(batch)

    def _without_refused(self, batch: RecordBatch) -> tuple[RecordBatch, list[Any]]:
        keys: list[Any] = []
        refused: set[int] = set()
        remaining = iter(batch.values)
        for index, value in enumerate(remaining):
            try:
                key = self._key(value)
            except BaseException as error:
                if not (self._own_policy and self._refusals.covers(error)):
                    raise user_code_error(
                        self._pipeline, self._node, batch, remaining, error
                    ) from error
                reason = described(error)
            else:
                reason = self._why_not(key)
                if not reason:
                    keys.append(key)
                    continue
            refused.add(index)
            self._refusals.refuse(batch, index, reason)
        return without(batch, refused), keys

    def _why_not(self, key: Any) -> str:
        """Return why a record cannot pass the edge; empty if it can."""
        if self._check.first_wrong([key]) is not None:
            declared = declared_name(self._check.type)
            return f"the key is {article(type(key).__name__)}, not {declared}"
        try:
            self._known[key]
        except PipelineError as error:  # the encoder raises it for a key without canonical bytes
            return described(error)
        except BaseException as error:
            if not self._refusals.covers(error):
                raise
            return described(error)
        return ""
