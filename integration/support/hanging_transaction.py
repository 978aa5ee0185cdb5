"""Makes a hanging transaction: open on a partition, and never ended by any coordinator.

A bug once caused such transactions (KAFKA-9144). This module causes one on purpose: it produces
transactional records without AddPartitionsToTxn, so the coordinator does not know the partition.
Brokers have refused such records since version 3.6. They allow them with
`transaction.partition.verification.enable=false` for a producer of the older protocol (Produce
v11). With KIP-890's protocol (v12) the broker itself adds the partition at the coordinator. A
hanging transaction therefore cannot be made with that protocol, whatever the broker's version.
"""

from __future__ import annotations

import time
from typing import Any

import kafka.errors as theirs
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest
from kafka.record.memory_records import MemoryRecordsBuilder

from integration.support.running import in_time

LENIENT = {"transaction.partition.verification.enable": "false"}
"""The broker setting that `hang` needs."""
BEFORE_KIP_890 = 11
"""The last version of Produce that uses the protocol before KIP-890."""
BUSY_S_MAX = 30.0


def hang(bootstrap: str, topic: str, transactional_id: str, *, known: bool, age_s: float) -> int:
    """Leave one record in an open transaction of partition 0, and return the producer's id.

    If `known` is true, a coordinator knows the producer, but not the partition that it wrote to.
    Otherwise no coordinator knows the producer. The record's timestamp is `age_s` seconds old.
    """
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        producer_id = _producer_id(admin, transactional_id if known else None)
        batch = MemoryRecordsBuilder(
            2, 0, 10_000, transactional=True, producer_id=producer_id, producer_epoch=0,
            base_sequence=0,
        )  # fmt: skip
        batch.append(int((time.time() - age_s) * 1000), None, b"left behind")
        batch.close()
        of_topic = ProduceRequest.TopicProduceData
        part = of_topic.PartitionProduceData(index=0, records=batch.buffer())
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[of_topic(name=topic, partition_data=[part])],
            max_version=BEFORE_KIP_890,
        )

        async def send() -> Any:
            leaders = await admin._async_get_leader_for_partitions([TopicPartition(topic, 0)])
            return await admin._manager.send(request, node_id=next(iter(leaders)))

        answer = admin._manager.run(send).responses[0].partition_responses[0]
        assert not answer.error_code, theirs.for_code(answer.error_code)
        return producer_id
    finally:
        admin.close()


def _producer_id(admin: Any, transactional_id: str | None) -> int:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=-1,
        producer_epoch=-1,
        max_version=4,
    )

    async def send() -> Any:
        if transactional_id is None:
            return await admin._manager.send(request)
        found = await admin._find_coordinator_ids(
            [transactional_id], key_type=CoordinatorType.TRANSACTION
        )
        return await admin._manager.send(request, node_id=found[transactional_id])

    end_s = time.monotonic() + BUSY_S_MAX
    while True:
        try:
            answer = admin._manager.run(send)
        except theirs.CoordinatorNotAvailableError:  # the state topic is being created
            answer = None
        if answer is not None and not answer.error_code:
            assert answer.producer_epoch == 0
            return int(answer.producer_id)
        in_time(time.monotonic() < end_s, answer)
        time.sleep(0.1)
