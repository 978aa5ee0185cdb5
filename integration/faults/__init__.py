"""Injects faults into tests: kill points, the kill matrix, proxies, unclean elections, the soak."""
