"""Tests of the exchange between slot processes: `drivers/exchange`, on real sockets."""
