"""Lays the connections between a cluster's processes through a network that can fail.

The switchboard lives in the test's process. Every process of the cluster that is started with the
mains of `integration.chaos.mains` tells it which role listens where, and asks it for the way each
time it connects; it answers with the address of a proxy. All ways from one role to another are one
`Link`, which is what tests cut, stall and slow down. Addresses in messages stay the true ones.

Links are named by who dials and who answers: `jobmaster` to `slot`, `slot` to `jobmaster`,
`taskmanager` to `jobmanager`, `slot` to `exchange` (another slot's), `slot` to `kafka`.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

from integration.chaos.proxy import FLOWING, HOST, Network, Proxy, Weather
from tidegate.ports.exchange import Exchange, OnFrames, OnLost
from tidegate.ports.rpc import Handler, Rpc, RpcClient, RpcServer

ADDRESS: Final = "TIDEGATE_TEST_SWITCHBOARD"
"""Environment variable: where the switchboard listens. Without it, nothing is laid anywhere."""
ASK_TIMEOUT_S: Final = 30.0


class Link:
    """All ways from one role to another, also those that are yet to come."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._weather = FLOWING
        self.proxies: dict[str, Proxy] = {}
        """By the true address behind each."""

    def way_to(self, address: str) -> str:
        """The address of the proxy in front of an address."""
        with self._lock:
            if address not in self.proxies:
                self.proxies[address] = self._network.proxy(address, self._weather)
            return self.proxies[address].address

    def set(self, weather: Weather) -> None:
        """From now on, on all of them."""
        with self._lock:
            self._weather = weather
            for proxy in self.proxies.values():
                proxy.set(weather)

    def forget(self) -> int:
        """Make all present connections half-open; how many there were."""
        with self._lock:
            return sum(proxy.forget() for proxy in self.proxies.values())


class Switchboard:
    """Knows who listens where; answers processes in threads. A context manager."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._roles: dict[str, str] = {}
        self._links: dict[tuple[str, str], Link] = {}
        board = self

        class Answering(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                question = json.loads(self.rfile.readline())
                self.wfile.write(json.dumps(board._answer(**question)).encode() + b"\n")

        self._server = socketserver.ThreadingTCPServer((HOST, 0), Answering)
        self._server.daemon_threads = True
        self.address = f"{HOST}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def link(self, dials: str, answers: str) -> Link:
        """From a role to a role."""
        with self._lock:
            key = (dials, answers)
            if key not in self._links:
                self._links[key] = Link(self._network)
            return self._links[key]

    def _answer(self, role: str, *, listens: str = "", dials: str = "") -> str:
        if listens:
            with self._lock:
                self._roles[listens] = role
            return listens
        with self._lock:
            to = self._roles[dials]
        return self.link(role, to).way_to(dials)

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# --- in the cluster's processes -----------------------------------------------------------------


def _ask(**question: str) -> str:
    host, _, port = os.environ[ADDRESS].rpartition(":")
    with socket.create_connection((host, int(port)), ASK_TIMEOUT_S) as connection:
        connection.sendall(json.dumps(question).encode() + b"\n")
        answer: str = json.loads(connection.makefile("rb").readline())
        return answer


class LaidRpc:
    """`ports.rpc.Rpc` of one role, over the switchboard's ways."""

    def __init__(self, real: Rpc, role: str) -> None:
        self._real, self._role = real, role

    def serve(self, handler: Handler, port: int = 0) -> RpcServer:
        """As the real one; the switchboard hears of it."""
        server = self._real.serve(handler, port)
        _ask(role=self._role, listens=server.address)
        return server

    def connect(self, address: str) -> RpcClient:
        """As the real one, by the way that the switchboard gives."""
        return self._real.connect(_ask(role=self._role, dials=address))


class LaidExchange:
    """A slot's end of the exchange; every peer is reached by a way of the switchboard's."""

    def __init__(self, real: Exchange, ordinal: int) -> None:
        self._real, self._ordinal = real, ordinal
        _ask(role="exchange", listens=real.address)

    def connect(
        self, peers: Mapping[int, str], *, post: Any, on_frames: OnFrames, on_lost: OnLost
    ) -> None:
        """As the real one."""
        laid = {
            peer: address if peer == self._ordinal else _ask(role="slot", dials=address)
            for peer, address in peers.items()
        }
        self._real.connect(laid, post=post, on_frames=on_frames, on_lost=on_lost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
