"""Routes the connections between a cluster's processes through a network that can fail.

The switchboard runs in the test's process. Every process that is started with the mains of
`integration.faults.kill_matrix.mains` reports to it the addresses on which it listens, with its
role. Before each connect, the process asks the switchboard for an address, and gets the address of
a proxy. All proxies from one role to another form one `Link`, which tests cut, stall and slow down.
Addresses in messages stay the true ones.

A link is named by the role that connects and the role that listens: `jobmaster` to `slot`, `slot`
to `jobmaster`, `taskmanager` to `jobmanager`, `slot` to `exchange` (of another slot), `slot` to
`kafka`.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

from integration.faults.kill_matrix.proxy import FLOWING, HOST, Network, Proxy, ProxyState
from tidegate.ports.exchange import Exchange, OnFrames, OnLost
from tidegate.ports.rpc import Handler, Rpc, RpcClient, RpcServer

ADDRESS: Final = "TIDEGATE_TEST_SWITCHBOARD"
"""Environment variable with the address of the switchboard. Without it, connections stay direct."""
ASK_TIMEOUT_S: Final = 30.0


class Link:
    """All present and future proxies from one role to another."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._lock = threading.Lock()
        self._state = FLOWING
        self.proxies: dict[str, Proxy] = {}
        """Proxies by the true address behind each."""

    def proxy_address(self, address: str) -> str:
        """Return the address of the proxy in front of an address."""
        with self._lock:
            if address not in self.proxies:
                self.proxies[address] = self._network.proxy(address, self._state)
            return self.proxies[address].address

    def set(self, state: ProxyState) -> None:
        """Set the state of the network on all present and future proxies."""
        with self._lock:
            self._state = state
            for proxy in self.proxies.values():
                proxy.set(state)

    def forget(self) -> int:
        """Make all present connections half-open, and return their number."""
        with self._lock:
            return sum(proxy.forget() for proxy in self.proxies.values())


class Switchboard:
    """The role behind each address, for processes that ask. Threads answer them. A context
    manager.
    """

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
        """Return the link from one role to another."""
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
        return self.link(role, to).proxy_address(dials)

    def close(self) -> None:
        """Stop answering."""
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


class ProxiedRpc:
    """The `ports.rpc.Rpc` of one role, which uses the proxies of the switchboard."""

    def __init__(self, real: Rpc, role: str) -> None:
        self._real, self._role = real, role

    def serve(self, handler: Handler, port: int = 0) -> RpcServer:
        """Serve as the real one does, and report the address to the switchboard."""
        server = self._real.serve(handler, port)
        _ask(role=self._role, listens=server.address)
        return server

    def connect(self, address: str) -> RpcClient:
        """Connect to the proxy that the switchboard gives for this address."""
        return self._real.connect(_ask(role=self._role, dials=address))


class ProxiedExchange:
    """A slot's end of the exchange, which reaches every peer through a proxy of the switchboard."""

    def __init__(self, real: Exchange, ordinal: int) -> None:
        self._real, self._ordinal = real, ordinal
        _ask(role="exchange", listens=real.address)

    def connect(
        self, peers: Mapping[int, str], *, post: Any, on_frames: OnFrames, on_lost: OnLost
    ) -> None:
        """Connect to the proxies of these peers. A slot reaches itself directly."""
        proxied = {
            peer: address if peer == self._ordinal else _ask(role="slot", dials=address)
            for peer, address in peers.items()
        }
        self._real.connect(proxied, post=post, on_frames=on_frames, on_lost=on_lost)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
