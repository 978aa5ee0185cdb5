"""Keys of a batch where a policy covers the records that cannot go along an edge by key: the key
cannot be taken or encoded, or the value has no encoding.

Called in front of an edge by key (`operators/chain.py`), and only where its policy lets the job go
on: a keyed step that is chained gets its keys from here, an outlet gets only records that can go.
Values are encoded for this check also where they stay in the slot, so that the policy does not
depend on the parallelism. Integers are the only values that a format decodes and that have no
encoding (beyond 64 bits), so other types are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from operator import countOf
from typing import Any, Final, cast

from tidegate.api.keys import key_encoder
from tidegate.api.types import type_info
from tidegate.api.values import KeyCheck, article, declared_name
from tidegate.api.wire import column_codec
from tidegate.dataplane.operators.failures import user_code_error
from tidegate.dataplane.refusals import Refusals, reason_of, without
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import Edge, Node
from tidegate.stream_elements import RecordBatch

KNOWN_KEYS: Final = 1 << 17
"""Keys that are known to have an encoding; one more, and all are forgotten."""


class _Encodable(dict[Any, None]):
    """Keys that can be encoded. A look-up of a new key encodes it once, a hit costs no call."""

    def __init__(self, encode: Callable[[Any], bytes]) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, key: Any) -> None:
        self._encode(key)
        if len(self) >= KNOWN_KEYS:
            self.clear()
        self[key] = None


class Keying:
    """Takes the keys of batches of one edge to `node`, and refuses the records that cannot go along
    it.

    An exception of the key function is covered by a policy of the key_by itself only: one that is
    inherited from a source is about its data, and must not hide a mistake in code.
    """

    def __init__(self, pipeline: str, node: Node, edge: Edge, refusals: Refusals) -> None:
        self._pipeline, self._node = pipeline, node
        self._own_policy = edge.on_error is not None
        self._key = cast("Callable[[Any], Any]", edge.key)
        self._known = _Encodable(key_encoder(edge.key_type))
        self._refusals = refusals
        self._check = KeyCheck(edge.key_type)
        of = edge.record_type
        has_integers = '"long"' in json.dumps(type_info(of).avro)
        self._encode = column_codec(of).encode if has_integers else None

    def keys(self, batch: RecordBatch) -> tuple[RecordBatch, list[Any]]:
        """The batch without the records that are refused, and the keys of the others."""
        try:
            keys = list(map(self._key, batch.values))
            known = countOf(map(self._known.__getitem__, keys), None)  # in C; nothing is kept
            if self._encode is not None:
                self._encode(batch.values)
            # Both are fewer where user code has raised StopIteration, which ends a `map`.
            right = known == len(keys) == len(batch.values)
            right = right and self._check.first_wrong(keys) is None
        except Exception:  # noqa: BLE001  # found again below, where its record is known
            right, keys = False, []
        return (batch, keys) if right else self._without_refused(batch)

    def _without_refused(self, batch: RecordBatch) -> tuple[RecordBatch, list[Any]]:
        keys: list[Any] = []
        refused: set[int] = set()
        remaining = iter(batch.values)
        for index, value in enumerate(remaining):
            try:
                key = self._key(value)
            except Exception as error:
                if not (self._own_policy and self._refusals.takes(error)):
                    raise user_code_error(
                        self._pipeline, self._node, batch, remaining, error
                    ) from error
                reason = reason_of(error)
            else:
                reason = self._why_not(key, value)
                if not reason:
                    keys.append(key)
                    continue
            refused.add(index)
            self._refusals.refuse(batch, index, reason)
        return without(batch, refused), keys

    def _why_not(self, key: Any, value: Any) -> str:
        """Why a record cannot go along the edge; empty if it can."""
        if self._check.first_wrong([key]) is not None:
            declared = declared_name(self._check.of)
            return f"the key is {article(type(key).__name__)}, not {declared}"
        try:
            self._known[key]
            if self._encode is not None:
                self._encode([value])
        except PipelineError as error:  # the encoder's own, for a key that has no canonical bytes
            return reason_of(error)
        except Exception as error:
            if not self._refusals.takes(error):
                raise
            return reason_of(error)
        return ""
