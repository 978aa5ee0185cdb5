"""Slots of the exchange's contract, on real sockets."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

from tests.contracts.exchange import Slot
from tests.contracts.surroundings import ContractEnvironment
from tidegate.drivers.exchange import SocketExchange


def socket_slot(
    ordinal: int, *, host: str | None = None, job: str = "job", attempt: int = 1
) -> Slot:
    """A slot that listens on a Unix socket, or on a free port of `host`."""
    exchange = SocketExchange(job=job, attempt=attempt, ordinal=ordinal, host=host)
    return Slot(exchange, ContractEnvironment())


class SocketWorld:
    """Makes slots in this process and closes them."""

    def __init__(self, host: str | None = None) -> None:
        self.environment = ContractEnvironment()
        self._host = host
        self._slots: list[Slot] = []

    def slot(self, ordinal: int, *, job: str = "job", attempt: int = 1) -> Slot:
        slot = socket_slot(ordinal, host=self._host, job=job, attempt=attempt)
        self._slots.append(slot)
        return slot

    def break_off(self, slot: Slot) -> None:
        """Closes sockets as the kernel does for a dead process; `test_two_processes` kills a real
        one.
        """
        assert isinstance(slot.exchange, SocketExchange)
        for peer in slot.exchange._peer_connections.values():
            if peer.socket is not None:
                peer.socket.shutdown(socket.SHUT_RDWR)

    def unused_address(self) -> str:
        return "unix:/nowhere/x" if self._host is None else f"{self._host}:1"

    def close(self) -> None:
        """Side by side: each waits for the other end to read what is under way."""
        with ThreadPoolExecutor(len(self._slots) or 1) as threads:
            list(threads.map(lambda slot: slot.exchange.close(), self._slots))
