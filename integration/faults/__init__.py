"""Faults that tests inject: kill points, the kill matrix, proxies, unclean elections, the soak."""
