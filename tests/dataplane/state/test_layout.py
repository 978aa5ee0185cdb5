"""The layout of store keys. These bytes lie in checkpoints: what is expected here cannot change."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from tests.dataplane.state.job import MAX_PARALLELISM, Step, declare
from tidegate.api.state.state import ListState, MapState, ValueState
from tidegate.dataplane.state.layout import (
    entries_span,
    group_part,
    groups_span,
    key_part,
    name_part,
)
from tidegate.errors import InternalError


@pytest.mark.parametrize(
    ("length", "head"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (20_000, "a09c01")],
)
def test_key_part_starts_with_the_length_of_the_key(length: int, head: str) -> None:
    assert key_part(b"x" * length) == bytes.fromhex(head) + b"x" * length


def test_name_part_starts_with_the_length_of_the_state_name() -> None:
    assert name_part("total") == b"\x05total"
    assert name_part("größe") == b"\x07gr\xc3\xb6\xc3\x9fe"
    for name in ("", "x" * 256):
        with pytest.raises(InternalError):
            name_part(name)


def test_a_key_group_is_two_bytes() -> None:
    assert group_part(1) == b"\x00\x01"
    assert groups_span(range(3, 128)) == (b"\x00\x03", b"\x00\x80")
    assert groups_span(range(32_768)) == (b"\x00\x00", b"\x80\x00")


def test_entries_span_of_a_map_ends_after_the_last_key_with_its_prefix() -> None:
    assert entries_span(b"\x00\x01\x01m\x01k") == (b"\x00\x01\x01m\x01k", b"\x00\x01\x01m\x01l")
    first, end = entries_span(b"\x00\x01\x01m\x02\xff\xff")
    assert end == b"\x00\x01\x01m\x03"
    assert first <= b"\x00\x01\x01m\x02\xff\xff\xff\xff\xff" < end


GOLDEN = {
    # group  name           key            map key     schema, value
    "0006 05 746f74616c 03 616e6e": "00 a53132 2e3530",
    "0006 03 6c6f67 03 616e6e": "00 92 01 02",
    "0006 04 7365656e 03 616e6e 6b": "00 92 a16b 07",
    "0006 04 7365656e 03 616e6e 6b6b": "00 92 a26b6b 08",
}
"""Stored entries of a step for the key "ann", as hex, with 8 key groups."""


def test_stored_keys_and_values_have_the_golden_bytes_of_old_checkpoints(tmp_path: Path) -> None:
    states = declare(total=ValueState(Decimal, default=Decimal(0)), log=ListState(int))
    states |= declare(seen=MapState(str, int), untouched=ValueState(int, default=3))
    step = Step(tmp_path, states)
    step.start(1)
    total, log, seen, _ = step.cells("ann")
    total.value = Decimal("12.50")  # type: ignore[attr-defined]
    log.replace([1, 2])  # type: ignore[attr-defined]
    seen["k"], seen["kk"] = 7, 8  # type: ignore[index]
    (state,) = step.subtasks
    state.flush()
    stored = dict(state._store.scan(*groups_span(range(MAX_PARALLELISM))))
    assert {key.hex(): value.hex() for key, value in stored.items()} == {
        key.replace(" ", ""): value.replace(" ", "") for key, value in GOLDEN.items()
    }
    step.stop()
