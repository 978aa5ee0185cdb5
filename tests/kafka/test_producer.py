"""The real producer where no broker is needed: what it refuses before anything is sent."""

from __future__ import annotations

import pytest

from tidegate.drivers.kafka.producer import KafkaProducer
from tidegate.errors import RecordTooLargeError

SETTINGS = {
    "bootstrap.servers": "127.0.0.1:1",
    "message.max.bytes": "2000000",
    "queue.buffering.max.kbytes": "1000",
}
LARGE = b"x" * 1_500_000


@pytest.mark.timeout(20)
def test_a_record_that_the_empty_queue_does_not_take_is_too_large_and_not_waited_for() -> None:
    """Nothing is in the queue that could time out, so waiting for room would never end."""
    producer = KafkaProducer(SETTINGS, None, 0)
    with pytest.raises(RecordTooLargeError, match="1500000 bytes") as raised:
        producer.send("out", [LARGE], None)
    assert "topic out" in str(raised.value)
    assert "queue.buffering.max.kbytes" in str(raised.value)
    with pytest.raises(RecordTooLargeError):
        producer.flush(1.0)
    producer = KafkaProducer(SETTINGS, None, 0)
    with pytest.raises(RecordTooLargeError, match="1500000 bytes"):
        producer.send_one("out", LARGE, b"key", [("h", b"x")], None)
