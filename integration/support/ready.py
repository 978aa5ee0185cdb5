"""`make ready`: is this machine ready? It sends one record through a real broker and times each
step.

The command checks only the set-up of the machine. The demo checks tidegate's runtime.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

from integration.support.brokers import create_topic, produce, read_all
from tidegate.drivers.kafka.embedded import EmbeddedKafka


def main() -> int:
    """Start a broker, write, read and stop. Return the exit code: 0 if the record was read back."""
    begun = time.perf_counter()
    directory = Path(tempfile.mkdtemp(prefix="tidegate-ready-"))
    try:
        with EmbeddedKafka.start(directory=directory, owned=True, report=_say) as kafka:
            _say(f"Kafka {kafka.version} answers after {time.perf_counter() - begun:.1f} s")
            create_topic(kafka.bootstrap, "ready", partitions=1)
            produce(kafka.bootstrap, "ready", [(b"key", b"value")])
            values = [record.value() for record in read_all(kafka.bootstrap, "ready")]
            _say(f"read back {values} after {time.perf_counter() - begun:.1f} s")
        _say(f"stopped after {time.perf_counter() - begun:.1f} s")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if values == [b"value"] else 1


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
