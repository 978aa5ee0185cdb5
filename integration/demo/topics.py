"""Creates the topics of the container demo when the brokers run.

`python -m integration.demo.topics` waits for the cluster, and creates each topic that does not
exist yet. The brokers' default sets the number of replicas. The command can be repeated.
"""

from __future__ import annotations

import argparse
import sys
import time

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from integration.support.brokers import create_topic

WAIT_S = 180.0


def main() -> int:
    """Wait for the brokers, create the topics, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m integration.demo.topics", description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="all brokers of the cluster")
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("topics", nargs="+")
    given = parser.parse_args()
    await_brokers(given.bootstrap, given.bootstrap.count(",") + 1)
    known = AdminClient({"bootstrap.servers": given.bootstrap}).list_topics(timeout=30).topics
    for name in given.topics:
        if name not in known:
            create_topic(given.bootstrap, name, partitions=given.partitions)
        print(f"{name}: {'there already' if name in known else 'created'}", flush=True)
    return 0


def await_brokers(bootstrap: str, count: int, timeout_s: float = WAIT_S) -> None:
    """Wait until a cluster of `count` brokers answers. Raise TimeoutError after `timeout_s`."""
    end_s = time.monotonic() + timeout_s
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    while True:
        try:
            found = len(admin.list_topics(timeout=2).brokers)
        except KafkaException:
            found = 0
        if found >= count:
            return
        if time.monotonic() > end_s:
            raise TimeoutError(f"{found} of {count} brokers at {bootstrap} after {timeout_s:g} s")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
