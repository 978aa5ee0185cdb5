"""All code that needs real servers: tests on brokers, the demo, the benchmark, the soak.

The fixtures of `conftest.py` start the brokers. A broker dies with the process that started it.
`demo`, `support`, `faults` and `bench` are tools; the other folders hold tests, by subject.
"""
