"""The inputs of the pipelines: records by topic, and the three states in which a topic may be.

    plain          An idempotent producer has written it.
    gaps           A compacted topic: a third of the records and their offsets are missing.
    transactions   The records were committed in transactions, between aborted transactions.

A topic never changes after it is written: the test waits for the compaction, and then switches it
off. So every run reads the same records.
"""

from __future__ import annotations

import io
import json
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import count, islice
from typing import Any, Final, Literal, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from fastavro import parse_schema, schemaless_writer

from integration.support.brokers import TIMEOUT_S, create_topic, read_all, unique
from integration.support.running import ROOT

Log = Literal["plain", "gaps", "transactions"]

PARTITIONS: Final = 3
IN_TRANSACTION: Final = 40
"""Number of records of a transaction."""
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "100",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "1",
}
NEVER_CHANGES: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
BROKER: Final = {"log.cleaner.backoff.ms": "200"}
"""Settings of the broker. With its default, compaction would begin after 15 s."""
COMPACTION_S_MAX: Final = 60.0


class Record(NamedTuple):
    """A record to write. Records with the same route are in one partition, in order."""

    route: str
    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0
    """Kafka's timestamp. 0 is the time of writing."""

    @property
    def partition(self) -> int:
        return zlib.crc32(self.route.encode()) % PARTITIONS


Records = Callable[[], Iterator[Record]]
"""A function that returns the same endless sequence of records in each call."""


class Dataset(NamedTuple):
    """The records that one source reads."""

    records: Records
    size: int = 1_000

    def all(self) -> list[Record]:
        """Return the records as a list."""
        return list(islice(self.records(), self.size))


def events(prefix: str, *, bad: bool = False, tombstones: bool = False) -> Records:
    """Return events of 40 keys. Names, keys and routes begin with the prefix, so that topics
    differ.
    """

    def made() -> Iterator[Record]:
        rng = random.Random(prefix)
        for number in count():
            key = f"{prefix}{rng.randrange(40):02d}"
            event = {"name": f"{prefix}-{number}", "key": key, "amount": rng.randrange(100)}
            value: bytes | None = json.dumps(event).encode()
            if bad and number % 23 == 5:
                value = b'{"name": "bad-%d", "key": 1}' % number
            if tombstones and number % 29 == 7:
                value = None
            yield Record(key, key.encode(), value)

    return made


def orders() -> Iterator[Record]:
    """Yield the input of `pipelines.order_totals`."""
    rng = random.Random("orders")
    for number in count():
        customer = f"customer-{rng.randrange(60):02d}"
        order = {
            "order_id": f"order-{number}",
            "customer_id": customer,
            "amount": f"{rng.randrange(1, 50_000) / 100:.2f}",
            "placed_at_ms": 1_700_000_000_000 + number,
        }
        yield Record(customer, customer.encode(), json.dumps(order).encode())


def clicks() -> Iterator[Record]:
    """Yield the input of `pipelines.click_dedup`. A third of the clicks repeats an earlier one, and
    some cannot be decoded.
    """
    rng = random.Random("clicks")
    sent: list[dict[str, Any]] = []
    for number in count():
        click = {
            "event_id": f"click-{number}",
            "user": f"user-{rng.randrange(20):02d}",
            "page": f"/{rng.randrange(4)}",
            "kind": rng.choice(["view", "buy"]),
            "at_ms": number,
        }
        if sent and number % 3 == 0:
            click = rng.choice(sent[-60:])
        sent.append(click)
        user = str(click["user"])
        value = b"no click" if number % 50 == 9 else json.dumps(click).encode()
        yield Record(user, user.encode(), value)


def payments() -> Iterator[Record]:
    """Yield the payments of `pipelines.payments_enriched`. Six accounts never arrive, and one of
    these six has many payments.
    """
    write = _avro("payment")
    rng = random.Random("payments")
    for number in count():
        account = f"account-{35 if rng.random() < 0.6 else rng.randrange(36):02d}"
        payment = {
            "payment_id": f"payment-{number}",
            "account_id": account,
            "amount": Decimal(rng.randrange(1, 9_999)) / 100,
            "paid_at_ms": number,
        }
        yield Record(account, account.encode(), write(payment))


SHOP_ORDERS: Final = 900
SHOP_PAYMENTS: Final = 750


def shop_orders() -> Iterator[Record]:
    """Yield the orders of `pipelines.paid_orders`, and then one in each partition that is later
    than every wait. So every order has its outcome before the input ends.
    """
    for order_id, placed_at_ms, _ in islice(_shop(), SHOP_ORDERS):
        order = {"order_id": order_id, "cents": 5, "placed_at_ms": placed_at_ms}
        yield Record(order_id, order_id.encode(), json.dumps(order).encode())
    for route in route_of_each_partition("last-order"):
        order = {"order_id": route, "cents": 5, "placed_at_ms": SHOP_END_MS}
        yield Record(route, route.encode(), json.dumps(order).encode())


def shop_payments() -> Iterator[Record]:
    """Yield the payments in the order of their time, some too late, and one in each partition that
    is later than every wait.
    """
    paid = [(paid_at_ms, order) for order, _, paid_at_ms in islice(_shop(), SHOP_ORDERS)]
    for paid_at_ms, order_id in sorted(paid)[:SHOP_PAYMENTS]:
        payment = {"order_id": order_id, "paid_at_ms": paid_at_ms}
        yield Record(order_id, order_id.encode(), json.dumps(payment).encode())
    for route in route_of_each_partition("last-payment"):
        payment = {"order_id": route, "paid_at_ms": SHOP_END_MS}
        yield Record(route, route.encode(), json.dumps(payment).encode())


SHOP_END_MS: Final = 1_700_100_000_000


def _shop() -> Iterator[tuple[str, int, int]]:
    """Yield orders with the times at which they are placed and paid. The times of orders are out of
    order, by less than the bound of the pipeline.
    """
    rng = random.Random("shop")
    for number in count():
        placed_at_ms = 1_700_000_000_000 + 5_000 * number - rng.randrange(9_000)
        delay_ms = rng.choice([0, 1_000, 300_000, 15 * 60_000, 15 * 60_000 + 1, 2_000_000])
        yield f"order-{number}", placed_at_ms, placed_at_ms + delay_ms


SALES: Final = 900
EVENING: Final = 30
ALL_SALES: Final = SALES + 2 * (PARTITIONS + EVENING)
CLICKS: Final = 900
OPEN_CLICKS: Final = 60
CARD_PAYMENTS: Final = 1_000
ALL_VIEWS: Final = CLICKS + PARTITIONS
ALL_CARD_PAYMENTS: Final = CARD_PAYMENTS + 2 * PARTITIONS
ALL_CLICKS: Final = CLICKS + PARTITIONS + OPEN_CLICKS
HOUR_MS: Final = 3_600_000
TRADE_BEGIN_MS: Final = 1_700_000_000_000 // HOUR_MS * HOUR_MS - 30_000
"""Half a minute before a full hour, so that sales around the full hours are out of order."""
TRADE_END_MS: Final = TRADE_BEGIN_MS + 1_000 * HOUR_MS
LAST_HOUR_MS: Final = TRADE_END_MS + 2 * HOUR_MS


def sales(*, beyond_bound: bool = False) -> Records:
    """Return the sales of `pipelines.hourly_revenue`: ten hours, then one sale in each partition
    that ends all of their windows, and two more hours. At the end of the input, one of these has
    its result and waits for late sales, and the other one is open. The sales of a shop are in all
    partitions.

    Sales come in bursts. The times of a burst are out of order by less than the bound of the
    pipeline. With `beyond_bound`, a fifth of the sales of the ten hours come later than that: some
    before the end of the allowed lateness, and some after it.
    """

    def made() -> Iterator[Record]:
        rng = random.Random("sales")
        for number in range(SALES):
            sold_at_ms = TRADE_BEGIN_MS + number // 30 * 1_200_000 + number % 30 * 2_000
            sold_at_ms -= rng.randrange(9_000)
            if beyond_bound and rng.random() < 0.2:
                sold_at_ms -= rng.choice([60_000, 1_800_000, 6_000_000, 14_400_000])
            yield _sale(f"sale-{number}", rng, sold_at_ms)
        for begin_ms in (TRADE_END_MS, LAST_HOUR_MS):
            for route in route_of_each_partition(f"sale-at-{begin_ms}"):
                yield _sale(route, rng, begin_ms)
            for number in range(EVENING):
                yield _sale(f"sale-{begin_ms + number}", rng, begin_ms + rng.randrange(9_000))

    return made


def _sale(route: str, rng: random.Random, sold_at_ms: int) -> Record:
    shop = f"shop-{rng.randrange(8)}"
    sale = {"shop": shop, "cents": rng.randrange(1, 10**9), "sold_at_ms": sold_at_ms}
    return Record(route, shop.encode(), json.dumps(sale).encode())


def page_clicks() -> Iterator[Record]:
    """Yield the clicks of `pipelines.visits`: five hours, then one click in each partition that
    ends all visits, and 20 minutes of visits that are open at the end. The clicks of a user are in
    all partitions.

    The times of a burst of ten clicks are out of order by less than the bound of the pipeline.
    """
    rng = random.Random("page clicks")
    for number in range(CLICKS):
        yield _page_click(f"click-{number}", rng, _in_bursts(TRADE_BEGIN_MS, number))
    for route in route_of_each_partition("click-at-end"):
        yield _page_click(route, rng, TRADE_END_MS)
    for number in range(OPEN_CLICKS):
        yield _page_click(f"open-{number}", rng, _in_bursts(TRADE_END_MS + 5_000, number))


def _in_bursts(begin_ms: int, number: int) -> int:
    return begin_ms + number // 10 * 200_000 + number % 10 * 1_000


def _page_click(route: str, rng: random.Random, until_ms: int) -> Record:
    """Return a click of a time directly before `until_ms`. The page follows from the time, so it
    does not matter which of two clicks of one time is the first.
    """
    user, at_ms = f"user-{rng.randrange(60):02d}", until_ms - rng.randrange(4_500)
    click = {"user": user, "page": f"/{at_ms % 7}", "at_ms": at_ms}
    return Record(route, user.encode(), json.dumps(click).encode())


def page_views() -> Iterator[Record]:
    """Yield the input of `pipelines.page_report`: five hours, then one view in each partition that
    ends all minutes before it. The views of a page are in all partitions.
    """
    rng = random.Random("page views")
    for number in range(CLICKS):
        at_ms = _in_bursts(TRADE_BEGIN_MS, number) - rng.randrange(4_500)
        yield _page_view(f"view-{number}", rng, at_ms)
    for route in route_of_each_partition("view-at-end"):
        yield _page_view(route, rng, TRADE_END_MS)


def _page_view(route: str, rng: random.Random, at_ms: int) -> Record:
    view = {"page": f"/{rng.randrange(9)}", "load_ms": rng.randrange(5_000), "at_ms": at_ms}
    return Record(route, route.encode(), json.dumps(view).encode())


def card_payments() -> Iterator[Record]:
    """Yield the input of `pipelines.card_alerts`, in order, one payment in each partition that ends
    every wait, and one whose wait stays open. The payments of a card are in one partition.
    """
    rng = random.Random("card payments")
    for number in range(CARD_PAYMENTS):
        card = f"card-{rng.randrange(12):02d}"
        cents = rng.choice([rng.randrange(1, 100), rng.randrange(200, 9_000), 60_000 + number])
        yield _card_payment(card, cents, TRADE_BEGIN_MS + number * 2_000)
    for card in route_of_each_partition("card-at-end"):
        yield _card_payment(card, 5_000, TRADE_END_MS)
    for card in route_of_each_partition("card-open"):
        yield _card_payment(card, 50, TRADE_END_MS + 1_000)


def _card_payment(card: str, cents: int, at_ms: int) -> Record:
    payment = {"card": card, "cents": cents, "at_ms": at_ms}
    return Record(card, card.encode(), json.dumps(payment).encode())


def signups() -> Iterator[Record]:
    """Yield the input of `pipelines.clean_signups`. A fifth of the records is not valid, or cannot
    be decoded.
    """
    for number in count():
        email = f"user-{number}@example.org" if number % 10 else "no address"
        signup = {"email": email, "country": "de", "at": f"2026-01-31T12:00:{number % 60:02d}Z"}
        value = b"no sign-up" if number % 10 == 5 else json.dumps(signup).encode()
        yield Record(email, email.encode(), value)


def route_of_each_partition(prefix: str) -> list[str]:
    """Return a route into each partition."""
    routes = (f"{prefix}-{number}" for number in count())
    found: dict[int, str] = {}
    while len(found) < PARTITIONS:
        route = next(routes)
        found.setdefault(Record(route, b"", b"").partition, route)
    return [found[partition] for partition in range(PARTITIONS)]


def accounts(versions: int) -> Records:
    """Return this number of versions of each of 30 accounts."""

    def made() -> Iterator[Record]:
        write = _avro("account")
        for version in range(versions):
            for number in range(30):
                name = f"account-{number:02d}"
                account = {
                    "account_id": name,
                    "owner": f"owner {number}, version {version}",
                    "country": None if number % 3 else "NL",
                    "tier": "GOLD" if version % 2 else "STANDARD",
                }
                yield Record(name, name.encode(), write(account))

    return made


def _avro(name: str) -> Callable[[dict[str, Any]], bytes]:
    schema = parse_schema(json.loads((ROOT / "schemas" / f"{name}.avsc").read_text()))

    def write(value: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        schemaless_writer(buffer, schema, value)
        return buffer.getvalue()

    return write


# --- topics -------------------------------------------------------------------------------------


def write_topic(bootstrap: str, dataset: Dataset, log: Log) -> str:
    """Create a topic with the records, in the given state, and return its name."""
    topic = unique("agreement")
    config = COMPACTED if log == "gaps" else NEVER_CHANGES
    create_topic(bootstrap, topic, partitions=PARTITIONS, config=config)
    records = dataset.all()
    if log == "plain":
        _write(bootstrap, topic, records)
    elif log == "transactions":
        _write_transactions(bootstrap, topic, records)
    else:
        _write_compacted(bootstrap, topic, records)
    return topic


def _write(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    _produce(producer, topic, records)


def _produce(producer: Producer, topic: str, records: Sequence[Record]) -> None:
    for record in records:
        producer.produce(
            topic,
            record.value,
            record.key,
            record.partition,
            timestamp=record.timestamp_ms,
            headers=list(record.headers),
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def _write_transactions(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Write the records in transactions. Before every third one an aborted transaction writes the
    same records, and another aborted one follows the last record.
    """
    settings = {"bootstrap.servers": bootstrap, "transactional.id": f"writer-{topic}"}
    producer = Producer(settings)
    producer.init_transactions(TIMEOUT_S)
    for number, start in enumerate(range(0, len(records), IN_TRANSACTION)):
        chunk = records[start : start + IN_TRANSACTION]
        if number % 3 == 0:
            _abort(producer, topic, chunk)
        producer.begin_transaction()
        _produce(producer, topic, chunk)
        producer.commit_transaction(TIMEOUT_S)
    _abort(producer, topic, records[-IN_TRANSACTION:])


def _abort(producer: Producer, topic: str, records: Sequence[Record]) -> None:
    producer.begin_transaction()
    _produce(producer, topic, records)
    producer.abort_transaction(TIMEOUT_S)


def _write_compacted(bootstrap: str, topic: str, records: Sequence[Record]) -> None:
    """Write the records, and wait until compaction has removed nearly every third one.

    The records are written in five parts, so that the log has closed segments. Every third record
    has the same key as the other such records of its partition.
    """
    filler = [
        record if number % 3 else record._replace(key=b"filler-%d" % record.partition)
        for number, record in enumerate(
            # Each other record gets its own key. Otherwise only the newest record of a key would
            # remain.
            record._replace(key=record.key + b"-%d" % number)
            for number, record in enumerate(records)
        )
    ]
    size = len(filler) // 5 + 1
    for start in range(0, len(filler), size):
        _write(bootstrap, topic, filler[start : start + size])
        time.sleep(0.15)
    end_s = time.monotonic() + COMPACTION_S_MAX
    while (left := len(read_all(bootstrap, topic))) > len(records) * 0.9:
        assert time.monotonic() < end_s, f"{topic} is not compacted: {left} records"
        time.sleep(0.2)
    _configure(bootstrap, topic, NEVER_CHANGES)
    while True:  # a cleaner round that has begun runs to its end
        left = len(read_all(bootstrap, topic))
        time.sleep(1.0)
        if len(read_all(bootstrap, topic)) == left:
            return


def _configure(bootstrap: str, topic: str, config: dict[str, str]) -> None:
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ],
    )
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(TIMEOUT_S)
