"""Control calls over the simulated network: the `ports.rpc` of one process.

A call consists of a request and a reply, which are separate messages. Each may be lost, be late or
arrive twice, and a request that arrives twice is handled twice. The real codec encodes and decodes
the messages, so a message that cannot be encoded fails here as well. Handlers run in a few threads
of their server's process, as with the real driver. A dead process refuses at once. A process that
is frozen or behind a partition does not answer, so the call times out. It may still act on the call
later.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.simulator.network import BASE_LATENCY_S, Network
from tests.simulator.scheduler import SimProcess, SimThread
from tests.simulator.threads import SimPool
from tidegate.drivers.rpc import calls
from tidegate.ports.rpc import Handler, Rpc
from tidegate.protocol import codec

SERVER_THREADS: Final = 16
"""Number of handler threads, equal to that of the real driver."""
STOP_GRACE_S: Final = 0.2
"""Time in seconds for running handlers to finish, equal to that of the real driver."""
SHUT: Final = "its connection was shut meanwhile"


def service_address(port: int) -> str:
    """Return the address that leads to the newest server with this port, on any host."""
    return f"sim:service:{port}"


class RpcNetwork:
    """The control calls of all processes of a network, with the server of each address."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.servers: dict[str, SimServer] = {}
        """Servers by address. Closed servers and those of dead processes stay, and refuse calls."""

    def of(self, process: SimProcess) -> SimRpc:
        """Return the `ports.rpc.Rpc` of one process."""
        return SimRpc(self, process)


class SimRpc:
    """The `ports.rpc.Rpc` of one process."""

    def __init__(self, rpc_network: RpcNetwork, process: SimProcess) -> None:
        self._rpc_network, self._process = rpc_network, process

    def serve(self, handler: Handler, port: int = 0) -> SimServer:
        """Start a server at a new address. With a port, the service address leads to it, too."""
        self._process.scheduler.maybe_switch()
        server = SimServer(self._rpc_network.network, self._process, handler)
        self._rpc_network.servers[server.address] = server
        if port:
            self._rpc_network.servers[service_address(port)] = server
        return server

    def connect(self, address: str) -> SimClient:
        self._process.scheduler.maybe_switch()
        return SimClient(self._rpc_network, self._process, address)


class _Call:
    """One call that a thread waits for."""

    __slots__ = ("process", "reply", "thread", "why")

    def __init__(self, thread: SimThread) -> None:
        self.thread: SimThread | None = thread
        self.process = thread.process
        self.reply: bytes | None = None
        self.why: str | None = None

    def finish(self, reply: bytes | None, why: str | None) -> None:
        """End the call with the reply, or with the reason of the failure. Only the first counts."""
        if self.thread is not None and self.reply is None and self.why is None:
            self.reply, self.why = reply, why
            self.process.scheduler.wake(self.thread)


class SimServer:
    """A `ports.rpc.RpcServer`. Its handlers run in threads of its process."""

    def __init__(self, network: Network, process: SimProcess, handler: Handler) -> None:
        self.address = network.new_address()
        self.process = process
        self.under_way: dict[_Call, None] = {}
        """Calls that wait for this server, including those that have not arrived yet."""
        self._network, self._handler = network, handler
        self._pool = SimPool(process, SERVER_THREADS, "rpc")
        self._closed = False
        network.join(process, self)

    def close(self) -> None:
        """Accept no further calls. Running calls have `STOP_GRACE_S` to finish."""
        scheduler = self.process.scheduler
        if self._closed:
            return
        self._closed = True
        if self.under_way and scheduler.current is not None:
            scheduler.wait(STOP_GRACE_S)
        self._network.leave(self.process, self)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.gone()

    def arrive(self, call: _Call, data: bytes) -> None:
        """Handle the arrival of a copy of a request. The network calls it outside any thread."""
        if self._closed or not self.process.alive:
            self._refuse(call)
        else:
            self._pool.submit(partial(self._handle, call, data))

    def gone(self) -> None:
        """Refuse all calls that wait for this server."""
        for call in self.under_way:
            self._refuse(call)

    def cut(self, others: Collection[SimProcess]) -> None:
        """End the calls of these processes. The handlers do not notice it."""
        for call in self.under_way:
            if call.process in others:
                call.finish(None, calls.NOT_REACHABLE)

    def _refuse(self, call: _Call) -> None:
        self._network.inform(
            self.process, call.process, partial(call.finish, None, calls.NOT_REACHABLE)
        )

    def _handle(self, call: _Call, data: bytes) -> None:
        reply = calls.handle_call(self._handler, data)
        self._network.carry(self.process, call.process, "reply", partial(call.finish, reply, None))


class SimClient:
    """The `ports.rpc.RpcClient` of one address."""

    def __init__(self, rpc_network: RpcNetwork, process: SimProcess, address: str) -> None:
        self._rpc_network, self._process, self._address = rpc_network, process, address
        self._server: SimServer | None = None
        """Server to which the client is connected until a call fails, even if the address leads
        to another server by now.
        """
        self._under_way: dict[_Call, None] = {}
        self._closed = False

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send a message and wait for the reply, as `ports.rpc` says."""
        scheduler = self._process.scheduler
        scheduler.maybe_switch()
        data = codec.encode(message)
        if self._closed:
            raise calls.not_sent_error(message, self._address)
        call = _Call(scheduler.running())
        network = self._rpc_network.network
        server = self._server = self._server or self._rpc_network.servers.get(self._address)
        self._under_way[call] = None
        if server is None:
            scheduler.call_later(BASE_LATENCY_S, partial(call.finish, None, calls.NOT_REACHABLE))
        else:
            server.under_way[call] = None
            network.carry(self._process, server.process, "call", partial(server.arrive, call, data))
        scheduler.wait(timeout_s)
        call.thread = None
        del self._under_way[call]
        if server is not None:
            del server.under_way[call]
        if call.reply is not None:
            return calls.decode_reply(call.reply)
        self._server = None
        raise calls.failed_error(
            message, self._address, call.why or calls.timeout_reason(timeout_s)
        )

    def close(self) -> None:
        """Close the client. Pending calls end with RpcError."""
        self._closed = True
        for call in self._under_way:
            call.finish(None, SHUT)


if TYPE_CHECKING:

    def _(rpc_network: RpcNetwork, process: SimProcess) -> Rpc:
        return rpc_network.of(process)
