"""Tests of control messages over real gRPC on the loopback."""
