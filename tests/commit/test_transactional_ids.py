"""Transactional ids are parsed whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.commit.transactional_ids import (
    format_transactional_id,
    job_prefix,
    parse_transactional_id,
)
from tidegate.errors import InternalError
from tidegate.ids import Attempt, JobName, SubtaskIndex, Uid


@given(
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True),
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,79}", fullmatch=True),
    st.integers(1, 10**12),
    st.integers(0, 32_768),
    st.integers(0, 99),
)
def test_what_is_written_is_parsed_back(
    job: str, sink: str, attempt: int, subtask: int, slot: int
) -> None:
    text = format_transactional_id(
        job=JobName(job),
        journal="0123456789abcdef",
        sink=Uid(sink),
        attempt=Attempt(attempt),
        subtask=SubtaskIndex(subtask),
        slot=slot,
    )
    parts = parse_transactional_id(text)
    assert parts is not None
    assert str(parts) == text
    assert (parts.job, parts.sink, parts.attempt) == (job, sink, attempt)
    assert (parts.subtask, parts.slot) == (subtask, slot)
    assert text.startswith(job_prefix(JobName(job)))


@pytest.mark.parametrize(
    "text",
    [
        "tidegate.a.b.j.sink.1.0.0",  # of a job `a.b`, were there one
        "tidegate.a.j.sink.1.0",
        "tidegate.a.j.sink.1.0.0.0",
        "tidegate.a.j.sink.0.0.0",
        "tidegate.a.j.sink.01.0.0",
        "tidegate.a.j.sink.1.-1.0",
        "tidegate.a.j.sink.1.0.0\n",
        "tidegate.A.j.sink.1.0.0",
        "xtidegate.a.j.sink.1.0.0",
        "tidegate.a.j.sink.x.0.0",
        "tidegate.a..sink.1.0.0",
        "",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_transactional_id(text) is None


def test_a_part_with_a_dot_is_a_bug() -> None:
    with pytest.raises(InternalError, match="does not parse back"):
        format_transactional_id(
            job=JobName("a"),
            journal="j",
            sink=Uid("dotted.sink"),
            attempt=Attempt(1),
            subtask=SubtaskIndex(0),
            slot=0,
        )
