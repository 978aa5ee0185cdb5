"""How large a record may be: the client's limit follows the topic's, and a dead letter always fits.

The sizes are those of Kafka's record format, so that a record that fits is never refused and one
that does not is never sent; `tests/contracts` sends the largest one to a real broker.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dataplane.sinks.doubles import Broker
from tests.drivers.kafka.surroundings import SubtaskHarness
from tidegate.api.connectors.kafka_records import ERROR, ORIGIN_OFFSET, ProducerRecord
from tidegate.dataplane.sizes import (
    CLIENT_MAX_BYTES,
    DEFAULT_MAX_BYTES,
    record_bytes,
    record_size_limit,
    shorten_dead_letter,
    size_settings,
)

OURS = ((ORIGIN_OFFSET, b"12"), (ERROR, b"x" * 50))


@pytest.mark.parametrize(
    ("settings", "topic_max", "message_max", "batch"),
    [
        ({}, 1_048_588, "1048588", None),
        ({}, 5_000_000, "5000000", None),
        ({}, 300_000, "300000", "300000"),
        ({}, 500, "1000", "500"),  # librdkafka accepts no smaller message.max.bytes
        ({}, None, str(CLIENT_MAX_BYTES), None),
        ({"compression.type": "zstd"}, 1_048_588, str(CLIENT_MAX_BYTES), None),
        ({"compression.type": "none"}, 1_048_588, "1048588", None),
        ({"message.max.bytes": "2000"}, 1_048_588, "2000", None),
        ({"batch.size": "7"}, 300_000, "300000", "7"),
    ],
)
def test_message_max_bytes_of_the_client_follows_the_topic_limit(
    settings: dict[str, str], topic_max: int | None, message_max: str, batch: str | None
) -> None:
    found = size_settings(settings, topic_max)
    assert found["message.max.bytes"] == message_max
    assert found.get("batch.size") == batch
    assert found.items() >= settings.items()


def test_alias_message_bytes_max_counts_as_the_client_limit() -> None:
    assert size_settings({"message.bytes.max": "5"}, 9) == {
        "message.bytes.max": "5",
        "batch.size": "9",
    }


@pytest.mark.parametrize(
    ("settings", "topic_max", "limit"),
    [
        ({}, None, DEFAULT_MAX_BYTES),
        ({}, 7_000, 7_000),
        ({"message.max.bytes": "2000"}, 7_000, 2_000),
        ({"message.max.bytes": "9000"}, 7_000, 7_000),
    ],
)
def test_largest_record_is_the_smaller_of_client_and_topic_limit(
    settings: dict[str, str], topic_max: int | None, limit: int
) -> None:
    assert record_size_limit(settings, topic_max) == limit


def test_sink_uses_the_message_limit_of_its_own_topic() -> None:
    broker = Broker()
    context = SubtaskHarness(broker, broker).context
    context.max_message_bytes = {"a": 5_000, "b": 6_000}
    assert context.record_bytes_max("sink", "a", {}) == 5_000
    assert context.record_bytes_max("sink", "c", {}) == DEFAULT_MAX_BYTES
    assert context.record_bytes_max("sink", "b", {"message.max.bytes": 10}) == 10


@pytest.mark.parametrize(
    ("key", "value", "headers", "size"),
    [
        (None, b"", (), 61 + 1 + 6),
        (b"k", b"v" * 63, (), 61 + 2 + 3 + 2 + 64 + 1),
        (b"k", b"v" * 64, (), 61 + 2 + 3 + 2 + 66 + 1),
        (None, None, (("é", b"ab"), ("n", None)), 61 + 1 + 3 + 1 + 1 + 1 + 3 + 3 + 2 + 1),
    ],
)
def test_record_bytes_is_the_size_in_kafkas_record_format(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], size: int
) -> None:
    assert record_bytes(key, value, headers) == size


def test_dead_letter_that_fits_is_not_changed() -> None:
    letter = ProducerRecord(b"k", b"v", OURS)
    assert shorten_dead_letter(letter, 1_000) is letter


@given(key=st.integers(0, 3_000), value=st.integers(0, 3_000), headers=st.integers(0, 3_000))
def test_dead_letter_is_cut_to_the_limit_and_says_what_was_left_out(
    key: int, value: int, headers: int
) -> None:
    theirs = (("trace", bytes(headers)),)
    letter = ProducerRecord(bytes(key), bytes(value), (*theirs, *OURS))
    sent = shorten_dead_letter(letter, 600)
    assert record_bytes(sent.key, sent.value, sent.headers) <= 600
    found = dict(sent.headers)
    assert found.items() >= dict(OURS).items()
    assert sent.value is not None, "a letter is no tombstone"
    left_out = {name.removeprefix("tidegate.left-out.") for name in found if "left-out" in name}
    assert ("value" in left_out) == (sent.value != letter.value or len(left_out) > 0)
    for name, size, kept in (
        ("value", value, sent.value == letter.value),
        ("key", key, sent.key == letter.key),
        ("headers", headers + len("trace"), "trace" in found),
    ):
        assert kept or found[f"tidegate.left-out.{name}"] == str(size).encode()
