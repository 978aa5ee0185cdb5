"""A producer of a shop's orders, with a fixed rate and a seed, as a separate process.

`python -m integration.demo.orders` writes orders to a topic at a steady rate. The key is the
customer, so each customer's orders are in one partition, in the order in which they were placed.
The same seed gives the same orders. The producer prints one line when it begins, and one when Kafka
has acknowledged all orders.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator

from confluent_kafka import Producer

CUSTOMERS = 10_000
CENTS_MAX = 50_000
BURST_S = 0.02
"""The time between two bursts, in seconds: so short that readers see a steady stream."""
FLUSH_S = 60.0


def orders(seed: int, count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and the value of each order; about 100 bytes."""
    rng = random.Random(seed)
    for number in range(count):
        customer = f"customer-{rng.randrange(CUSTOMERS):05d}"
        cents = 1 + rng.randrange(CENTS_MAX)
        value = (
            f'{{"order_id":"{seed}-{number:09d}","customer_id":"{customer}",'
            f'"amount":"{cents // 100}.{cents % 100:02d}",'
            f'"placed_at_ms":{1_700_000_000_000 + number}}}'
        )
        yield customer.encode(), value.encode()


def write(bootstrap: str, topic: str, *, seed: int, rate: int, count: int) -> float:
    """Write `count` orders, `rate` per second, and wait for all. Return the seconds it took.

    Raises RuntimeError if an order was not written.
    """
    refused: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: refused.append(error),
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    begun = time.monotonic()
    for written, (key, value) in enumerate(orders(seed, count), start=1):
        producer.produce(topic, value, key)
        ahead_s = begun + written / rate - time.monotonic() if written % 100 == 0 else 0.0
        if ahead_s > BURST_S:
            producer.poll(0)
            time.sleep(ahead_s)
    left = producer.flush(FLUSH_S)
    if left or refused:
        raise RuntimeError(f"{left} orders unsent, {len(refused)} refused: {refused[:1]}")
    return time.monotonic() - begun


def main() -> int:
    """Write the orders, and report the begin and the end in JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo.orders", description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=20_000, help="orders a second")
    parser.add_argument("--records", type=int, default=1_000_000, help="orders in all")
    given = parser.parse_args()
    print(json.dumps({"event": "begun", "at_ms": round(time.time() * 1000)}), flush=True)
    took_s = write(
        given.bootstrap, given.topic, seed=given.seed, rate=given.rate, count=given.records
    )
    print(json.dumps({"event": "written", "records": given.records, "seconds": took_s}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
