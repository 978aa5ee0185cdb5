"""One port, several readers: each step owns the records that it gets.

A record that goes to another slot is encoded, so the receiver has an object of its own. A record
that stays in its slot goes by reference, and a step that changes it would change what another step
gets, or what the step before still holds. `fan_out` makes copies there, so that output does not
depend on where steps run.

A type whose values cannot change in place is never copied; that is found out once, when a chain is
built. Refusing other types was the alternative. It would cost nothing, but plain dataclasses are
common records, and a copy of one costs a third of decoding and encoding it (`docs/formats.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegate.api.copying import immutable
from tidegate.stream_elements import RecordBatch

Emit = Callable[[RecordBatch], None]
CopyBatch = Callable[[RecordBatch], RecordBatch]


class Target(NamedTuple):
    """One reader of a port. `reads_only` says that it neither changes nor keeps a record."""

    emit: Emit
    reads_only: bool


def fan_out(targets: Sequence[Target], of: object, *, shared: bool, copies: CopyBatch) -> Emit:
    """Sends each batch to all targets, so that each target owns the records that it gets.

    `shared` says that the step which made the records may still hold them, or give one twice; then
    no target gets the originals. Targets that only read come first and need no copies.
    """
    if not targets or immutable(of):
        return _to_all([target.emit for target in targets])
    readers = [target.emit for target in targets if target.reads_only]
    owners = [target.emit for target in targets if not target.reads_only]
    original = [] if shared or not owners else [owners.pop()]  # the last, when all have their copy
    copied = [_to_copy(emit, copies) for emit in owners]
    return _to_all([*readers, *copied, *original])


def _to_all(emits: Sequence[Emit]) -> Emit:
    if len(emits) == 1:
        return emits[0]

    def emit(batch: RecordBatch) -> None:
        for each in emits:
            each(batch)

    return emit


def _to_copy(emit: Emit, copies: CopyBatch) -> Emit:
    return lambda batch: emit(copies(batch))
