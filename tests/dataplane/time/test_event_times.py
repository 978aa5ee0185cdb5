"""Event times of a batch: where they come from, and the records that have none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tidegate.api.time.watermarks import TIME_MAX_MS, HeaderTime, instant_ms
from tidegate.dataplane.time.event_times import EventTimes


@dataclass
class Message:
    """A record as the client library returns it."""

    time_ms: int = 5
    kind: int = 1
    own_headers: tuple[tuple[str, bytes | None], ...] = ()

    def timestamp(self) -> tuple[int, int]:
        return self.kind, self.time_ms

    def headers(self) -> Any:
        return list(self.own_headers) or None


def column(times: EventTimes, messages: list[Message], values: list[Any]) -> list[int] | None:
    return times.column(messages, values)  # type: ignore[arg-type]


def reason(times: EventTimes, message: Message, value: Any = None) -> str:
    with pytest.raises(ValueError) as caught:
        times.of(message, value)  # type: ignore[arg-type]
    return str(caught.value)


def test_time_is_kafkas_timestamp_without_a_function() -> None:
    assert column(EventTimes(None, None), [Message(7), Message(3)], ["a", "b"]) == [7, 3]


@pytest.mark.parametrize(
    "without", [Message(kind=0), Message(-1), Message(-1, kind=2), Message(-86_400_000)]
)
def test_record_without_a_timestamp_in_kafka_has_no_time(without: Message) -> None:
    times = EventTimes(None, None)
    assert column(times, [Message(7), without], ["a", "b"]) is None
    assert reason(times, without) == "Kafka has no timestamp of it"


@pytest.mark.parametrize("without", [Message(kind=0), Message(-1)])
def test_function_needs_no_timestamp_in_kafka_unless_max_ahead_compares_with_it(
    without: Message,
) -> None:
    assert column(EventTimes(lambda each: each, None), [without], [-5]) == [-5]
    times = EventTimes(lambda each: each, 100)
    assert column(times, [Message(7), without], [7, 7]) is None
    assert reason(times, without, 7) == (
        "Kafka has no timestamp of it, and max_ahead compares its event time with that timestamp"
    )


def test_time_is_the_result_of_the_users_function() -> None:
    times = EventTimes(lambda value: value * 10, None)
    assert column(times, [Message(), Message()], [1, 2]) == [10, 20]


@pytest.mark.parametrize(
    ("instant", "expected_ms"),
    [
        (0, 0),
        (-1, -1),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC), 1000),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC), -1),
    ],
)
def test_instant_is_rounded_down_to_milliseconds(instant: object, expected_ms: int) -> None:
    assert instant_ms(instant) == expected_ms


def test_datetime_with_a_zone_is_an_event_time() -> None:
    times = EventTimes(lambda value: value, None)
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert column(times, [Message()], [at]) == [1000]
    assert times.of(Message(), at) == 1000  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "its event time is None, not milliseconds"),
        (1.5, "its event time is a float, not milliseconds"),
        (True, "its event time is a bool, not milliseconds"),
        ("5", "its event time is a str, not milliseconds"),
        (datetime(2026, 1, 1), "its event time 2026-01-01 00:00:00 has no zone"),  # noqa: DTZ001
        (TIME_MAX_MS + 1, "is out of range"),
        (-TIME_MAX_MS - 1, "is out of range"),
    ],
)
def test_unusable_time_is_found_and_the_reason_says_why(value: object, words: str) -> None:
    times = EventTimes(lambda each: each, None)
    assert column(times, [Message(), Message()], [1, value]) is None
    assert words in reason(times, Message(), value)


def test_function_that_raises_is_found() -> None:
    times = EventTimes(lambda each: each["at"], None)
    assert column(times, [Message()], [{}]) is None
    with pytest.raises(KeyError):
        times.of(Message(), {})  # type: ignore[arg-type]


def test_function_that_raises_stop_iteration_loses_no_record() -> None:
    def stops(value: int) -> int:
        if value == 2:
            raise StopIteration
        return value

    assert column(EventTimes(stops, None), [Message()] * 3, [1, 2, 3]) is None


def test_time_further_ahead_of_kafkas_than_allowed_is_unusable() -> None:
    times = EventTimes(lambda each: each, 100)
    assert column(times, [Message(5), Message(9)], [105, 109]) == [105, 109]
    assert column(times, [Message(9), Message(5)], [105, 106]) is None, "each record is compared"
    assert "101 ms ahead of Kafka's timestamp, and max_ahead allows 100 ms" in reason(
        times, Message(5), 106
    )


@pytest.mark.parametrize(
    ("unit", "text", "expected_ms"),
    [
        ("ms", b"1500", 1500),
        ("s", b"-2", -2000),
        ("us", b"1999", 1),
        ("iso", b"1970-01-01T01:00:01+01:00", 1000),
    ],
)
def test_time_in_a_header_has_a_unit(unit: Any, text: bytes, expected_ms: int) -> None:
    times = EventTimes(HeaderTime("at", unit=unit), None)
    message = Message(own_headers=(("at", b"7"), ("other", b"x"), ("at", text)))
    assert column(times, [message], [None]) == [expected_ms], "the last header of the name counts"


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ((), "it has no header 'at'"),
        ((("at", None),), "it has no header 'at'"),
        ((("at", b"noon"),), "its header 'at' has b'noon', not a time in 'ms'"),
    ],
)
def test_missing_or_malformed_header_is_a_bad_time(headers: Any, words: str) -> None:
    times = EventTimes(HeaderTime("at"), None)
    assert column(times, [Message(own_headers=headers)], [None]) is None
    assert words in reason(times, Message(own_headers=headers))


def test_iso_header_without_a_zone_is_a_bad_time() -> None:
    times = EventTimes(HeaderTime("at", unit="iso"), None)
    assert "has no zone" in reason(times, Message(own_headers=(("at", b"2026-01-01T00:00:00"),)))
