"""The exchange over sockets: the contract, and what sockets bring (strangers, folders, limits)."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.exchange import ExchangeContract
from tests.drivers.exchange.mailbox import SocketWorld
from tidegate.drivers import local_sockets
from tidegate.drivers.exchange import SocketExchange, addresses
from tidegate.drivers.exchange.wire import (
    FrameReader,
    HandshakeRejected,
    HandshakeRequest,
    decode_exchange_message,
    exchange_frame,
)
from tidegate.errors import ExchangeError


def world_on(host: str | None) -> Iterator[SocketWorld]:
    """See that no thread and no open file is left. (Those of tests before may go meanwhile.)"""
    threads, files = set(threading.enumerate()), _open_files()
    world = SocketWorld(host)
    yield world
    world.close()
    world.environment.until(lambda: threads.issuperset(threading.enumerate()))
    world.environment.until(lambda: _open_files() <= files)


class TestSocketExchange(ExchangeContract):
    @pytest.fixture(params=[None, "127.0.0.1"], ids=["unix", "tcp"])
    def world(self, request: pytest.FixtureRequest) -> Iterator[SocketWorld]:
        yield from world_on(request.param)


@pytest.fixture
def world() -> Iterator[SocketWorld]:
    yield from world_on(None)


def test_a_peer_that_never_dials_is_lost(
    world: SocketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.drivers.exchange.sockets.CONNECT_TIMEOUT_S", 0.1)
    slot = world.slot(1)
    slot.connect({0: "unix:/nowhere/x"})
    slot.run_until(lambda: 0 in slot.lost, 2.0)
    assert "did not connect" in str(slot.lost[0])


@pytest.mark.parametrize("early", [True, False], ids=["before connect", "after connect"])
def test_a_second_connection_of_a_slot_is_refused(world: SocketWorld, early: bool) -> None:
    # A third peer is still to come, so the listener is open.
    low, high = world.slot(0), world.slot(2)
    low.connect({2: high.address})
    if early:
        assert isinstance(low.exchange, SocketExchange)
        links = low.exchange._peer_connections
        low.run_until(lambda: links[2].socket is not None)
    else:
        high.connect({0: low.address, 1: "unix:/later"})
        low.exchange.send(2, 0, (b"first",))
        high.run_until(lambda: bool(high.frames[0]))
    for hello in (
        HandshakeRequest(job="job", attempt=1, sender=0, receiver=2),  # once more
        HandshakeRequest(
            job="job", attempt=1, sender=7, receiver=2
        ),  # the higher one does not dial
        HandshakeRequest(job="job", attempt=1, sender=1, receiver=9),  # meant for another slot
    ):
        assert isinstance(_say(high.address, exchange_frame(hello)), HandshakeRejected)


@pytest.mark.parametrize(
    "noise",
    [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100, exchange_frame(HandshakeRejected(reason="?")), b""],
    ids=["http", "zeros", "wrong message", "nothing"],
)
def test_foreign_connection_is_closed_and_does_not_disturb_the_slots(
    world: SocketWorld, noise: bytes
) -> None:
    low, high = world.slot(0), world.slot(1)
    assert _say(high.address, noise, then_close=not noise) is None
    high.connect({0: low.address})
    low.connect({1: high.address})
    low.exchange.send(1, 0, (b"fine",))
    high.run_until(lambda: bool(high.frames[0]))
    assert not high.lost


def test_silent_foreign_connection_is_closed_after_the_handshake_timeout(
    world: SocketWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.drivers.exchange.sockets.HANDSHAKE_TIMEOUT_S", 0.1)
    assert _say(world.slot(1).address, b"") is None


def test_unix_socket_folder_is_removed_when_all_peers_are_connected(world: SocketWorld) -> None:
    low, high = world.slot(0), world.slot(1)
    folders = [Path(s.address.removeprefix("unix:")).parent for s in (low, high)]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    low.connect({1: high.address})
    high.connect({0: low.address})
    low.exchange.send(1, 0, (b"x",))
    high.exchange.send(0, 0, (b"x",))
    low.run_until(lambda: bool(low.frames[1]))
    high.run_until(lambda: bool(high.frames[0]))
    assert not any(folder.exists() for folder in folders)
    alone = world.slot(0)
    folder = Path(alone.address.removeprefix("unix:")).parent
    assert folder.exists()
    alone.exchange.close()
    assert not folder.exists()


def test_temporary_folder_with_a_too_long_path_is_not_used_for_sockets(
    world: SocketWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    slot = world.slot(0)
    assert len(slot.address.removeprefix("unix:")) <= local_sockets.PATH_BYTES_MAX
    assert not list(long.iterdir())


def test_listen_on_a_foreign_address_raises_exchange_error() -> None:
    with pytest.raises(ExchangeError, match=r"203\.0\.113\.1"):
        addresses.listen("203.0.113.1")


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _say(address: str, data: bytes, *, then_close: bool = False) -> object:
    """Speaks to a listener as any process could. Returns its answer, None if it hangs up."""
    with socket.socket(socket.AF_UNIX) as pending:
        pending.settimeout(10)
        pending.connect(address.removeprefix("unix:"))
        pending.sendall(data)
        if then_close:
            return None
        reader = FrameReader()
        try:
            received = pending.recv_into(reader.space())
        except ConnectionResetError:
            return None
        frames = reader.take(received) if received else []
        return decode_exchange_message(frames[0][1]) if frames else None
