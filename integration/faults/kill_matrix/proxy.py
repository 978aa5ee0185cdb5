"""Provides TCP proxies. Their traffic can be cut, stalled, muted, slowed down or made half-open.

A `Proxy` listens on a port of the loopback address and forwards every connection to one target. A
`Network` owns the event loop of its proxies, which has a thread of its own. Any other thread may
set the state of any proxy. The proxy handles only bytes and connections, and knows no protocol.

The states of a proxy (`ProxyState`), and the faults that they stand for:

    flowing     No fault.
    cut         Connections are reset, and new ones are refused, as by a pulled cable or a closed
                port.
    stalled     Connections are accepted and stay, but the bytes of both sides wait, as in a switch
                that hangs. When the proxy flows again, the bytes arrive late.
    mute        The client's bytes arrive, but the server's answers are lost, so the outcome of a
                request is unknown. When the proxy flows again, it resets the connections that lost
                an answer.
    slow        Bytes arrive late, and few at a time.

In addition, `forget` makes every present connection half-open, once. The server sees a reset, and
the client sees nothing. The client may continue to write for ever, and no process receives the
bytes. New connections are not affected.

Invariant: the bytes of one direction arrive in order, unaltered and without a hole. Lost bytes are
lost together with their connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeVar

HOST: Final = "127.0.0.1"
CHUNK_BYTES: Final = 64 << 10
CALL_TIMEOUT_S: Final = 10.0
BUFFER_BYTES_MAX: Final = 4 << 20
"""Bytes that the proxy swallows from a muted server before it makes the server wait. No test sends
more.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProxyState:
    """The state of a proxy from now on."""

    kind: Literal["flowing", "cut", "stalled", "mute", "slow"] = "flowing"
    latency_s: float = 0.0
    """Delay of every chunk of bytes in each direction, in seconds, if `kind` is `slow`."""
    bytes_per_s: float = float("inf")
    """Bytes per second of each connection in each direction, if `kind` is `slow`."""


FLOWING: Final = ProxyState()
CUT: Final = ProxyState("cut")
STALLED: Final = ProxyState("stalled")
MUTE: Final = ProxyState("mute")


def slow(*, latency_s: float, bytes_per_s: float) -> ProxyState:
    """Return a state in which bytes arrive late and few at a time."""
    return ProxyState("slow", latency_s, bytes_per_s)


class Network:
    """Proxies, and the thread in which they run. The end of the `with` statement ends all of
    them.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._proxies: list[Proxy] = []

    def proxy(self, target: str, state: ProxyState = FLOWING) -> Proxy:
        """Make a proxy in front of `host:port` or `unix:PATH`."""
        made = Proxy(target, state, self.do)
        self.do(made.listen)
        self._proxies.append(made)
        return made

    def do(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run a call in the network's thread, wait for it, and return its result."""

        async def run() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_TIMEOUT_S)

    def close(self) -> None:
        """End every proxy and the thread."""
        for each in self._proxies:
            self.do(each.end)
        self.do(_cancel_others)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Proxy:
    """A listening port, and the connections through it."""

    def __init__(self, target: str, state: ProxyState, do: Callable[..., Any]) -> None:
        """Make a proxy that does not listen yet. Only `Network.proxy` calls this."""
        self.target = target
        self.address = ""
        self.accepted = 0
        """Number of connections so far. It shows that a client really uses this proxy."""
        self._do = do
        self._state = state
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._held = _bound(0)
        """A socket that keeps the port bound while the proxy does not listen. The port then refuses
        connections, and no other process can take it.
        """
        self._pipes: set[_Pipe] = set()

    @property
    def state(self) -> ProxyState:
        """The present state."""
        return self._state

    def set(self, state: ProxyState) -> None:
        """Set the state, and return when it is in effect."""

        async def change() -> None:
            before, self._state = self._state, state
            for pipe in list(self._pipes):
                if state.kind == "cut" or (before.kind == "mute" and pipe.lost):
                    pipe.reset()
            self._changed.set()
            self._changed = asyncio.Event()
            if (state.kind == "cut") != (self._server is None):
                if state.kind == "cut":
                    self._deafen()
                else:
                    await self.listen()

        self._do(change)

    def forget(self) -> int:
        """Make the present connections half-open, and return their number."""

        async def half_open() -> int:
            open_ = [pipe for pipe in self._pipes if not pipe.forgotten]
            for pipe in open_:
                pipe.forget()
            return len(open_)

        forgotten: int = self._do(half_open)
        return forgotten

    # --- in the network's thread ----------------------------------------------------------------

    async def listen(self) -> None:
        """Listen. A proxy that was made during an outage does not listen: its port is bound, and
        refuses connections.
        """
        self.address = f"{HOST}:{self._held.getsockname()[1]}"
        if self._state.kind != "cut":
            self._server = await asyncio.start_server(self._accept, sock=self._held)

    async def end(self) -> None:
        """Stop listening, and reset the connections."""
        for pipe in list(self._pipes):
            pipe.reset()
        self._deafen()
        self._held.close()

    def _deafen(self) -> None:
        if self._server is not None:
            port = self._held.getsockname()[1]
            self._server.close()
            self._server = None
            self._held = _bound(port)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        pipe = _Pipe(self, reader, writer)
        self._pipes.add(pipe)
        try:
            await pipe.run()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has closed; the reset below notifies the other one
        finally:
            self._pipes.discard(pipe)
            pipe.reset()

    async def wait_for(self, passes: Callable[[ProxyState], bool]) -> None:
        """Wait until the state lets bytes pass."""
        while not passes(self._state):
            await self._changed.wait()


def _bound(port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, port))
    return held


class _Pipe:
    """One connection: the accepted side of the client, and the connected side of the target."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.lost = False
        """Whether an answer was swallowed. No later answer may follow it."""
        self.forgotten = False

    async def run(self) -> None:
        await self._proxy.wait_for(lambda state: state.kind != "stalled")
        target = self._proxy.target
        if target.startswith("unix:"):
            self._server = await asyncio.open_unix_connection(target.removeprefix("unix:"))
        else:
            host, _, port = target.rpartition(":")
            self._server = await asyncio.open_connection(host, int(port))
        client, server = self._client, self._server
        ways = [
            asyncio.ensure_future(self._pass_on(client[0], server[1], answers=False)),
            asyncio.ensure_future(self._pass_on(server[0], client[1], answers=True)),
        ]
        try:
            await asyncio.gather(*ways)
        except OSError:
            if not self.forgotten:
                raise
            await self._swallow()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        if self.forgotten:
            await self._swallow()

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool
    ) -> None:
        proxy, swallowed = self._proxy, 0
        while data := await source.read(CHUNK_BYTES):
            await proxy.wait_for(lambda state: state.kind != "stalled")
            if answers and (proxy.state.kind == "mute" or self.lost):
                self.lost = True
                swallowed += len(data)
                if swallowed > BUFFER_BYTES_MAX:
                    await proxy.wait_for(lambda state: state.kind != "mute")
                continue
            state = proxy.state
            if state.kind == "slow":
                await asyncio.sleep(state.latency_s + len(data) / state.bytes_per_s)
            if self.forgotten:
                return
            sink.write(data)
            await sink.drain()
        if not self.forgotten and not self.lost and sink.can_write_eof():
            with contextlib.suppress(OSError):  # the peer has closed the connection
                sink.write_eof()

    async def _swallow(self) -> None:
        """Read and drop all bytes that the client of a half-open connection sends."""
        with contextlib.suppress(OSError):
            while await self._client[0].read(CHUNK_BYTES):
                pass

    def forget(self) -> None:
        """Reset the server's side. The client's side stays open, and receives no further bytes."""
        self.forgotten = True
        if self._server is not None:
            _reset(self._server[1])

    def reset(self) -> None:
        """Reset both sides."""
        _reset(self._client[1])
        if self._server is not None:
            _reset(self._server[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a reset, so that the peer sees an error and not an end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
