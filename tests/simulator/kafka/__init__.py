"""A Kafka cluster in memory, for simulations: `ports/kafka.py` and `KafkaAdmin` without a broker.

The cluster is deterministic: it uses no real time, no threads and no random numbers. Time comes
from a `Clock`, faults come from a hook. `cluster.FakeKafka` is the cluster, and `FakeKafka.process`
makes the drivers of one process.

    log.py          one partition: records, markers, last stable offset
    coordinator.py  transactions: producer ids, epochs, states, timeouts
    timeline.py     scheduled actions: arrivals of requests, markers, timeouts
    brokers.py      request handling of the brokers: topics, groups, rights, transactions
    faults.py       the hook that decides the fate of each request
    connection.py   the requests of one process: their delivery, freeze and kill
    producer.py, reader.py, control.py   the ports, with the behavior of the real clients
"""
