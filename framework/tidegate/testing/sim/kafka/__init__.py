"""A Kafka cluster in memory, for simulations: `ports/kafka.py` and `KafkaAdmin` without a broker.

Deterministic: no real time, no thread, no chance. Time comes from a `Clock`, faults from a hook.
`cluster.FakeKafka` is the cluster; `FakeKafka.process` makes the drivers of one process.

    log.py          one partition: records, markers, last stable offset
    coordinator.py  transactions: producer ids, epochs, states, timeouts
    timeline.py     what happens later: requests that arrive, markers, timeouts
    brokers.py      what brokers do with a request: the two above, topics, groups, rights
    faults.py       the hook: what becomes of each request
    connection.py   one process's requests: how they travel, and how they end with it
    producer.py, reader.py, control.py   the ports, as the real clients behave
"""
