"""Makes the records of the benchmark: 143 bytes of JSON with eight fields and 100,000 user keys.

Other systems were measured with the same shape and distribution, so that the figures can be
compared. The same seed gives the same bytes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from confluent_kafka import Producer

USERS: Final = 100_000
PARTITIONS: Final = 4
THRESHOLD: Final = 500.0
"""The transform keeps records with a larger amount, which are half of the records."""

WINDOW_MS: Final = 10_000
"""Length of a window of the windowed sums.

Ten records share one millisecond, so a window is a hundred thousand records long. Each user has
about one record in a window, and nearly each record ends one window and begins the next.
"""

GAP_MS: Final = 10_000
"""Gap of the sessions. A user has a record every ten seconds on average, so a session has about
three records.
"""

_COUNTRIES = ("CH", "DE", "FR", "IT", "AT", "US", "GB", "ES")


class Click(msgspec.Struct, frozen=True, gc=False):
    """A decoded record."""

    seq: int
    user: str
    amount: float
    ts: int
    sku: str
    qty: int
    country: str
    note: str


class ClickWithFee(msgspec.Struct, gc=False):
    """A click that paid: a decoded record with one more field.

    It can change, and the field has a default. So a program decodes a record into it and sets the
    fee, which costs less than a second object.
    """

    seq: int
    user: str
    amount: float
    ts: int
    sku: str
    qty: int
    country: str
    note: str
    fee: float = 0.0


def records(count: int, seed: int = 7) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and value of each record, in order."""
    rng = random.Random(seed)
    encode = msgspec.json.Encoder().encode
    for seq in range(count):
        user = f"u{rng.randrange(USERS):06d}"
        value = Click(
            seq=seq,
            user=user,
            amount=round(rng.uniform(0, 1000), 2),
            ts=1_700_000_000_000 + seq // 10,
            sku=f"sku-{rng.randrange(10_000):05d}",
            qty=rng.randrange(1, 10),
            country=rng.choice(_COUNTRIES),
            note="x" * 24,
        )
        yield user.encode(), encode(value)


def click_of(number: int, amount: float) -> Click:
    """Make a click of user `number`. After the last user, the first one follows."""
    return Click(
        seq=number,
        user=f"u{number % USERS:06d}",
        amount=amount,
        ts=1_700_000_000_000,
        sku="sku-00000",
        qty=1,
        country=_COUNTRIES[0],
        note="x" * 24,
    )


def everyone() -> Iterator[tuple[bytes, bytes]]:
    """Yield one record of each user, with the amount 0."""
    encode = msgspec.json.Encoder().encode
    for number in range(USERS):
        click = click_of(number, amount=0.0)
        yield click.user.encode(), encode(click)


def fill(bootstrap: str, topic: str, rows: Iterable[tuple[bytes, bytes]]) -> None:
    """Write records to a topic, partitioned by key as the Java producer does."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "enable.idempotence": True,  # a retry must not change the order
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for key, value in rows:
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(120)
    if left:
        message = f"{left} records could not be written to {topic}."
        raise RuntimeError(message)
