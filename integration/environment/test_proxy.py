"""The proxy for network faults does exactly what its documentation says.

The tests use a server that answers each line in upper case, over real sockets on the loopback
address.
"""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from integration.faults.kill_matrix.proxy import (
    CUT,
    FLOWING,
    HOST,
    MUTE,
    STALLED,
    Network,
    Proxy,
    slow,
)

TIMEOUT_S = 10.0
SHORT_S = 0.3
"""The time for which held-up bytes must not arrive, in seconds."""


class Shouting(socketserver.StreamRequestHandler):
    heard: list[bytes]

    def handle(self) -> None:
        for line in self.rfile:
            self.heard.append(line)
            self.wfile.write(line.upper())


@pytest.fixture
def heard() -> list[bytes]:
    """The lines that the server has received on all connections."""
    return []


@pytest.fixture
def server(heard: list[bytes]) -> Iterator[str]:
    handler = type("Handler", (Shouting,), {"heard": heard})
    with socketserver.ThreadingTCPServer((HOST, 0), handler) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, args=(0.02,), daemon=True).start()
        yield f"{HOST}:{serving.server_address[1]}"
        serving.shutdown()


@pytest.fixture
def proxy(server: str) -> Iterator[Proxy]:
    with Network() as network:
        yield network.proxy(server)


def connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def ask(connection: socket.socket, line: bytes) -> bytes:
    connection.sendall(line)
    return answer(connection)


def answer(connection: socket.socket) -> bytes:
    """Receive one line, or its beginning if the connection ends before."""
    found = b""
    while not found.endswith(b"\n") and (more := connection.recv(100)):
        found += more
    return found


def test_flowing_proxy_passes_data_in_both_directions_and_ends_with_either_side(
    proxy: Proxy,
) -> None:
    with connect(proxy) as first, connect(proxy) as second:
        assert ask(first, b"one\n") == b"ONE\n"
        assert ask(second, b"two\n") == b"TWO\n"
        first.shutdown(socket.SHUT_WR)
        assert answer(first) == b""
        assert ask(second, b"three\n") == b"THREE\n"
    assert proxy.accepted == 2


def test_proxy_passes_a_large_message_complete(proxy: Proxy) -> None:
    line = b"x" * 1_000_000 + b"\n"
    with connect(proxy) as connection:
        threading.Thread(target=connection.sendall, args=(line,), daemon=True).start()
        assert answer(connection) == line.upper()


def test_cut_proxy_resets_connections_and_refuses_new_connections_until_it_flows(
    proxy: Proxy,
) -> None:
    with connect(proxy) as connection:
        assert ask(connection, b"one\n") == b"ONE\n"
        proxy.set(CUT)
        with pytest.raises(ConnectionResetError):
            answer(connection)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        proxy.set(CUT)
    proxy.set(FLOWING)
    with connect(proxy) as connection:
        assert ask(connection, b"two\n") == b"TWO\n"


def test_proxy_created_as_cut_refuses_connections_until_it_flows(server: str) -> None:
    with Network() as network:
        proxy = network.proxy(server, CUT)
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        proxy.set(FLOWING)
        with connect(proxy) as connection:
            assert ask(connection, b"one\n") == b"ONE\n"


def test_stalled_proxy_accepts_connections_and_delivers_data_when_it_flows_again(
    proxy: Proxy, heard: list[bytes]
) -> None:
    with connect(proxy) as old:
        assert ask(old, b"one\n") == b"ONE\n"
        proxy.set(STALLED)
        with connect(proxy) as new:
            old.sendall(b"two\n")
            new.sendall(b"three\n")
            time.sleep(SHORT_S)
            assert heard == [b"one\n"]
            proxy.set(FLOWING)
            assert answer(old) == b"TWO\n"
            assert answer(new) == b"THREE\n"


def test_muted_proxy_delivers_requests_and_drops_the_answer_with_its_connection(
    proxy: Proxy, heard: list[bytes]
) -> None:
    with connect(proxy) as connection, connect(proxy) as idle:
        assert ask(connection, b"one\n") == b"ONE\n"
        proxy.set(MUTE)
        connection.sendall(b"two\n")
        end_s = time.monotonic() + TIMEOUT_S
        while b"two\n" not in heard:
            assert time.monotonic() < end_s, "what is sent does not arrive"
            time.sleep(0.01)
        connection.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            answer(connection)
        proxy.set(FLOWING)
        connection.settimeout(TIMEOUT_S)
        with pytest.raises(ConnectionResetError):
            answer(connection)
        assert ask(idle, b"three\n") == b"THREE\n", "one that lost nothing goes on"


def test_slow_proxy_delays_and_throttles_data(proxy: Proxy) -> None:
    proxy.set(slow(latency_s=0.1, bytes_per_s=20_000))
    with connect(proxy) as connection:
        begun_s = time.monotonic()
        line = b"x" * 3_999 + b"\n"
        assert ask(connection, line) == line.upper()
        assert time.monotonic() - begun_s >= 2 * (0.1 + 4_000 / 20_000)


def test_forgotten_connection_is_silent_for_the_client_and_new_connections_flow(
    proxy: Proxy, heard: list[bytes]
) -> None:
    with connect(proxy) as old:
        assert ask(old, b"one\n") == b"ONE\n"
        assert proxy.forget() == 1
        assert proxy.forget() == 0
        old.settimeout(SHORT_S)
        for _ in range(2):
            old.sendall(b"two\n")
            with pytest.raises(TimeoutError):
                answer(old)
        assert heard == [b"one\n"]
        with connect(proxy) as new:
            assert ask(new, b"three\n") == b"THREE\n"
        proxy.set(CUT)
        old.settimeout(TIMEOUT_S)
        with pytest.raises(ConnectionResetError):
            answer(old)


def test_proxy_resets_a_connection_if_its_target_refuses(proxy: Proxy) -> None:
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))
        proxy.target = f"{HOST}:{nobody.getsockname()[1]}"
        with pytest.raises(ConnectionResetError), connect(proxy) as connection:
            answer(connection)
