"""A TCP proxy whose traffic can be cut, held up, muted, slowed down or forgotten while it runs.

A `Proxy` listens on a port of the loopback address and passes every connection on to one target. A
`Network` owns the event loop that they run in, a thread of its own, and may be told from any other
thread what befalls which proxies. Only bytes and connections are known here, no protocol.

What can befall a proxy (`Weather`), and what it stands for:

    flowing     nothing
    cut         connections are reset and new ones refused: a cable pulled, a port closed
    stalled     connections are accepted and stay, bytes of either side wait: a switch that hangs.
                When it flows again they arrive, late
    mute        what the client sends arrives, what the server answers is lost, and the connections
                it was lost on are reset when it flows again: requests whose outcome nobody knows
    slow        bytes arrive late and few at a time

and once, at a moment: `forget` makes every present connection half-open. The server sees it reset,
the client sees nothing: it may go on writing to nobody for ever. New connections are not affected.

Invariant: bytes of one direction arrive in order, unaltered, without a hole: what is lost is lost
with its connection.
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
HELD_BYTES_MAX: Final = 4 << 20
"""What is swallowed of a muted server before it is made to wait: no test sends more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Weather:
    """What befalls a proxy from now on."""

    kind: Literal["flowing", "cut", "stalled", "mute", "slow"] = "flowing"
    latency_s: float = 0.0
    """Slow: every chunk of bytes comes so much later, each way."""
    bytes_per_s: float = float("inf")
    """Slow: of each connection, each way."""


FLOWING: Final = Weather()
CUT: Final = Weather("cut")
STALLED: Final = Weather("stalled")
MUTE: Final = Weather("mute")


def slow(*, latency_s: float, bytes_per_s: float) -> Weather:
    """Late and few."""
    return Weather("slow", latency_s, bytes_per_s)


class Network:
    """Proxies and the thread that they run in. A context manager: its end ends all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()
        self._proxies: list[Proxy] = []

    def proxy(self, target: str, weather: Weather = FLOWING) -> Proxy:
        """A new proxy in front of `host:port` or `unix:PATH`."""
        made = Proxy(target, weather, self.do)
        self.do(made.listen)
        self._proxies.append(made)
        return made

    def do(self, call: Callable[[], Awaitable[T]]) -> T:
        """Run something in the network's thread and wait for it."""

        async def run() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(CALL_TIMEOUT_S)

    def close(self) -> None:
        """End every proxy, and the thread."""
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
    """One listening port, and the connections through it."""

    def __init__(self, target: str, weather: Weather, do: Callable[..., Any]) -> None:
        """Not for users: `Network.proxy` makes one."""
        self.target = target
        self.address = ""
        self.accepted = 0
        """Connections so far: shows that a client really goes this way."""
        self._do = do
        self._weather = weather
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._held = _bound(0)
        """The port while nobody listens on it: bound, it refuses, and nobody else can take it."""
        self._pipes: set[_Pipe] = set()

    @property
    def weather(self) -> Weather:
        """What befalls it now."""
        return self._weather

    def set(self, weather: Weather) -> None:
        """From now on; returns when it holds."""

        async def change() -> None:
            before, self._weather = self._weather, weather
            for pipe in list(self._pipes):
                if weather.kind == "cut" or (before.kind == "mute" and pipe.lost):
                    pipe.reset()
            self._changed.set()
            self._changed = asyncio.Event()
            if (weather.kind == "cut") != (self._server is None):
                if weather.kind == "cut":
                    self._deafen()
                else:
                    await self.listen()

        self._do(change)

    def forget(self) -> int:
        """Make the present connections half-open; how many there were."""

        async def half_open() -> int:
            open_ = [pipe for pipe in self._pipes if not pipe.forgotten]
            for pipe in open_:
                pipe.forget()
            return len(open_)

        forgotten: int = self._do(half_open)
        return forgotten

    # --- in the network's thread ----------------------------------------------------------------

    async def listen(self) -> None:
        """Listen, unless it is made during an outage: then its port is known, and refuses."""
        self.address = f"{HOST}:{self._held.getsockname()[1]}"
        if self._weather.kind != "cut":
            self._server = await asyncio.start_server(self._accept, sock=self._held)

    async def end(self) -> None:
        """Stop listening and reset what is connected."""
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
            pass  # either side has gone: the other one is told by the reset below
        finally:
            self._pipes.discard(pipe)
            pipe.reset()

    async def wait_for(self, passes: Callable[[Weather], bool]) -> None:
        """Until the weather lets it pass."""
        while not passes(self._weather):
            await self._changed.wait()


def _bound(port: int) -> socket.socket:
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((HOST, port))
    return held


class _Pipe:
    """One connection: the client's side, which was accepted, and the target's, which is dialled."""

    def __init__(
        self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.lost = False
        """Whether an answer was swallowed: nothing may follow it."""
        self.forgotten = False

    async def run(self) -> None:
        await self._proxy.wait_for(lambda weather: weather.kind != "stalled")
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
            await proxy.wait_for(lambda weather: weather.kind != "stalled")
            if answers and (proxy.weather.kind == "mute" or self.lost):
                self.lost = True
                swallowed += len(data)
                if swallowed > HELD_BYTES_MAX:
                    await proxy.wait_for(lambda weather: weather.kind != "mute")
                continue
            weather = proxy.weather
            if weather.kind == "slow":
                await asyncio.sleep(weather.latency_s + len(data) / weather.bytes_per_s)
            if self.forgotten:
                return
            sink.write(data)
            await sink.drain()
        if not self.forgotten and not self.lost and sink.can_write_eof():
            with contextlib.suppress(OSError):  # it has gone meanwhile
                sink.write_eof()

    async def _swallow(self) -> None:
        """Read what the client of a half-open connection sends, to its end."""
        with contextlib.suppress(OSError):
            while await self._client[0].read(CHUNK_BYTES):
                pass

    def forget(self) -> None:
        """The server's side is reset; the client's stays, and hears nothing any more."""
        self.forgotten = True
        if self._server is not None:
            _reset(self._server[1])

    def reset(self) -> None:
        """Both sides."""
        _reset(self._client[1])
        if self._server is not None:
            _reset(self._server[1])


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close without a goodbye: the peer sees an error and not an end."""
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
