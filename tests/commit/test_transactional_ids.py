"""Transactional ids are parsed whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.commit.transactional_ids import (
    claim_id,
    format_transactional_id,
    job_prefix,
    list_attempts,
    parse_claim_id,
    parse_transactional_id,
    transaction_system,
)
from tidegate.errors import InternalError
from tidegate.ids import JOB_NAME, KAFKA, Attempt, JobName, SubtaskIndex, TransactionalId, Uid


@given(
    st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True),
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,79}", fullmatch=True),
    st.integers(1, 10**12),
    st.integers(0, 32_768),
    st.integers(0, 99),
    st.sampled_from([KAFKA, "files", "kafka2", "postgres_9"]),
)
def test_formatted_transactional_id_is_parsed_back(
    job: str, sink: str, attempt: int, subtask: int, index: int, system: str
) -> None:
    text = format_transactional_id(
        job=JobName(job),
        journal_id="0123456789abcdef",
        sink=Uid(sink),
        attempt=Attempt(attempt),
        subtask=SubtaskIndex(subtask),
        index=index,
        system=system,
    )
    assert transaction_system(text) == system
    parts = parse_transactional_id(text)
    assert parts is not None
    assert str(parts) == text
    assert (parts.job, parts.sink, parts.attempt) == (job, sink, attempt)
    assert (parts.subtask, parts.index, parts.system) == (subtask, index, system)
    prefix = job_prefix(JobName(job))
    assert text.startswith(prefix if system == KAFKA else f"{system}:{prefix}")


WORD = st.sampled_from(
    ["tidegate", "files:tidegate", "a", "j", "", "0", "1", "01", "10", "x", "-1", "1\n", "²"]
)


@given(st.lists(st.lists(WORD, max_size=8).map(".".join)))
def test_attempts_of_many_ids_equal_the_attempts_of_each_parsed_id(texts: list[str]) -> None:
    parsed = [parse_transactional_id(text) for text in texts]
    each = {(parts.job, parts.journal_id, parts.attempt) for parts in parsed if parts is not None}
    assert list_attempts(map(TransactionalId, texts)) == each


@given(st.permutations([f"tidegate.a.j{n % 2}.s.{n}.{n % 3}.{n}" for n in range(1, 9)]))
def test_attempts_of_repeated_ids_are_returned_once(texts: list[str]) -> None:
    found = list_attempts(TransactionalId(text) for text in (*texts, *texts))
    assert sorted(found) == sorted(("a", f"j{n % 2}", n) for n in range(1, 9))


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
        "kafka:tidegate.a.j.sink.1.0.0",  # Kafka's own ids have no name of a system
        "Files:tidegate.a.j.sink.1.0.0",
        ":tidegate.a.j.sink.1.0.0",
        "a:b:tidegate.a.j.sink.1.0.0",
        "",
    ],
)
def test_malformed_transactional_id_is_not_parsed(text: str) -> None:
    assert parse_transactional_id(text) is None


@given(
    job=st.from_regex(f"\\A{JOB_NAME}\\Z").map(JobName),
    journal_id=st.from_regex(r"\A[a-z0-9]{1,32}\Z"),
)
def test_claim_id_is_parsed_back_and_is_no_id_of_an_attempt(job: JobName, journal_id: str) -> None:
    name = claim_id(job, journal_id)
    assert parse_claim_id(name) == (job, journal_id)
    assert name.startswith(job_prefix(job))
    assert parse_transactional_id(name) is None
    assert list_attempts([name]) == set()


@pytest.mark.parametrize(
    "text", ["", "tidegate.a.j", "tidegate.a.j._claims.1.0.0", "files:tidegate.a.j._claims"]
)
def test_malformed_claim_id_is_not_parsed(text: str) -> None:
    assert parse_claim_id(text) is None


def test_transactional_id_part_with_a_dot_raises_internal_error() -> None:
    with pytest.raises(InternalError, match="does not parse back"):
        format_transactional_id(
            job=JobName("a"),
            journal_id="j",
            sink=Uid("dotted.sink"),
            attempt=Attempt(1),
            subtask=SubtaskIndex(0),
            index=0,
        )
