"""One port with several readers: each step owns the records that it gets.

A record that goes to another slot is encoded, so the receiver has its own object. A record that
stays in its slot is passed by reference. A step that changes such a record would also change the
record of another reader, or an object that the previous step still holds. `fan_out` makes copies in
these cases, so that the output does not depend on where steps run.

A type whose values cannot change in place is never copied. This is determined once, when a chain is
built. The alternative was to refuse other types. That would cost nothing, but plain dataclasses are
common records. A copy of one costs a third of decoding and encoding it (`docs/guides/formats.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegate.api.records.copying import immutable
from tidegate.stream_elements import RecordBatch

Emit = Callable[[RecordBatch], None]
CopyBatch = Callable[[RecordBatch], RecordBatch]


class Target(NamedTuple):
    """One reader of a port. `reads_only` says that it neither changes nor keeps a record."""

    emit: Emit
    reads_only: bool


def fan_out(targets: Sequence[Target], of: object, *, shared: bool, copies: CopyBatch) -> Emit:
    """Return a function that sends each batch to all targets. Each target owns the records that it
    gets.

    `shared` says that the step that made the records may still hold them, or give one twice. Then
    every target gets copies, except for targets that only read. These come first and need no
    copies.
    """
    if not targets or immutable(of):
        return _to_all([target.emit for target in targets])
    readers = [target.emit for target in targets if target.reads_only]
    owners = [target.emit for target in targets if not target.reads_only]
    original = [] if shared or not owners else [owners.pop()]  # last, when the others have copies
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
