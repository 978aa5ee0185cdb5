"""The JobManager's connections to TaskManagers and JobMasters: one for each address.

Worker threads use them. Connections to processes that are gone are closed when the number of
connections exceeds OPEN_MAX.
"""

from __future__ import annotations

from collections import OrderedDict

from tidegate.ports.rpc import Rpc, RpcClient
from tidegate.ports.threads import Threads
from tidegate.protocol.messages import Message

OPEN_MAX = 512
"""Maximum number of open connections. A cluster has at most 256 local TaskManagers, and the number
of JobMasters varies."""


class Connections:
    """A cache of open connections that keeps the most recently used ones."""

    def __init__(self, rpc: Rpc, threads: Threads) -> None:
        self._rpc = rpc
        self._lock = threads.lock()
        self._clients: OrderedDict[str, RpcClient] = OrderedDict()

    def call(self, address: str, message: Message) -> Message:
        """Send a message and return the reply. Raise the errors of `RpcClient.call`."""
        reply: Message = self._client(address).call(message)
        return reply

    def invalidate(self, address: str) -> None:
        """Close the connection to an address at which a new process listens.

        A connection that still tries to reach the old process would refuse calls meanwhile.
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
