"""Connections of the JobManager to TaskManagers and JobMasters, by address, each made once.

Used by worker threads. Addresses of processes that are gone fall out when others need the room.
"""

from __future__ import annotations

from collections import OrderedDict

from tidegate.ports.rpc import Rpc, RpcClient
from tidegate.ports.threads import Threads
from tidegate.protocol.messages import Message

OPEN_MAX = 512
"""A cluster has at most 256 local TaskManagers; JobMasters come and go."""


class Connections:
    """Keeps the most recently used connections open."""

    def __init__(self, rpc: Rpc, threads: Threads) -> None:
        self._rpc = rpc
        self._lock = threads.lock()
        self._clients: OrderedDict[str, RpcClient] = OrderedDict()

    def call(self, address: str, message: Message) -> Message:
        """Send a message and wait for the reply; raises as `RpcClient.call`."""
        reply: Message = self._client(address).call(message)
        return reply

    def invalidate(self, address: str) -> None:
        """A new process listens there: a connection that still waits to reach the old one again
        would refuse calls meanwhile.
        """
        with self._lock:
            client = self._clients.pop(address, None)
        if client is not None:
            client.close()

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _client(self, address: str) -> RpcClient:
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = self._rpc.connect(address)
            self._clients.move_to_end(address)
            if len(self._clients) > OPEN_MAX:
                self._clients.popitem(last=False)[1].close()
        return client
