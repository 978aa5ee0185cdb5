"""What needs real servers: tests on brokers, the demo, the benchmark, the soak.

Brokers are started by the fixtures of `conftest.py` and die with the process that asked for them.
"""
