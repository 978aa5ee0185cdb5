"""Client and server of `ports.rpc` over gRPC.

One unary method carries every message as bytes, which `protocol.codec` encodes and decodes. An
error of a handler is sent as `Failed`, and the caller raises it as the same class (`calls`). An
error of gRPC itself becomes RpcError with the address. This module does not retry: only the caller
knows which calls are safe to repeat. A process that forks must not have started a server or a
client before (the fork server imports this module, but starts nothing).

The other end of a connection can vanish silently: a host loses its power, or a firewall drops the
connection. Such a connection accepts calls forever and answers none. So a connection on which a
call timed out is doubted: later calls use a new connection, even if the doubted one was still being
established. gRPC's own remedy is to ping each connection every few seconds. But every event in a
process wakes gRPC's thread pool dozens of times, even in an idle cluster.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# Set before grpc is imported. Its fork handlers would only log warnings, because no process of
# tidegate forks after it has made a channel. Its own "info" logs must not reach a user's terminal.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from tidegate.drivers.endpoint import LOOPBACK, Endpoint, bracketed
from tidegate.drivers.local_sockets import UNIX, new_socket_path
from tidegate.drivers.process.user_forks import end_if_forked
from tidegate.drivers.rpc import calls
from tidegate.drivers.threads import ThreadPool
from tidegate.errors import RpcError
from tidegate.ports.rpc import Handler
from tidegate.protocol import codec

MESSAGE_BYTES_MAX = 64 << 20
"""The maximum size of a message in bytes. A Deploy lists every restored file of a slot; 64 MiB is
enough for hundreds of thousands of files.
"""

_SERVER_THREADS = 16
"""The number of threads of a server. Handlers post to an event loop and wait for it, so threads
cost little. SubmitJob waits for the storage.
"""
_CALLS_MAX = 512
"""The maximum number of concurrent calls. gRPC refuses more (RESOURCE_EXHAUSTED), and the caller
retries.
"""
_STOP_GRACE_S = 0.2

_METHOD = "/tidegate.Control/Call"
Options = list[tuple[str, int]]
_LIMITS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
]
CLIENT_OPTIONS: Final[Options] = [
    *_LIMITS,
    # A restarted process has a new port, so an address that refused a connection is rarely
    # retried. For a JobManager with a fixed port it is, and gRPC's default backoff of a second and
    # more would then be most of the recovery time.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, this is the maximum time to establish a connection, including its first
    # frames. With a value as short as the backoff, a briefly busy process would count as gone.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # Rare pings, because firewalls drop silent connections: those from the JobManager to its
    # TaskManagers carry no call for days. A shorter timeout for the answer to a ping would break
    # calls to a machine that is only busy.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # for gRPC's own pings, behind which keepalives wait
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    # Otherwise the successor of a doubted connection would share its TCP connection.
    ("grpc.use_local_subchannel_pool", 1),
]
_SERVER_OPTIONS: Final[Options] = [
    *_LIMITS,
    ("grpc.so_reuseport", 0),
    # By default a server closes the connection of a client that pings more often than every five
    # minutes.
    ("grpc.http2.max_ping_strikes", 0),
]


def _refuse_taken_port(host: str, port: int) -> None:
    """Raise RpcError if another process listens on the port at one of the addresses of `host`.

    gRPC listens on the other addresses and reports no error. Clients would then reach the other
    process, because `localhost` has an address of IPv4 and one of IPv6.
    """
    if port == 0:
        return
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return  # gRPC reports an unknown name
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise RpcError(
                        f"Cannot listen on {bracketed(host)}:{port}: another process listens "
                        f"there (address {address[0]}). Stop that process, or choose another port "
                        "with jobmanager.port or taskmanager.port."
                    ) from error


class GrpcRpc:
    """An implementation of `ports.rpc.Rpc` with gRPC. Its servers listen as `endpoint` says."""

    def __init__(self, endpoint: Endpoint = LOOPBACK) -> None:
        self._endpoint = endpoint

    def serve(self, handler: Handler, port: int = 0) -> GrpcServer:
        """Listen for calls. RpcError if that is not possible."""
        return GrpcServer(handler, self._endpoint, port)

    def connect(self, address: str) -> GrpcClient:
        """Return a client of `host:port` or `unix:PATH`. It connects at the first call."""
        return GrpcClient(address)


class GrpcServer:
    """A listening endpoint. Handlers run in its threads."""

    def __init__(self, handler: Handler, endpoint: Endpoint, wanted: int) -> None:
        self._handler = handler
        self._threads = ThreadPool(_SERVER_THREADS, thread_name_prefix="rpc")
        # Start one thread before the first call. If the operating system refuses the pool its first
        # thread, the pool raises. gRPC's own thread would then end, and the server would answer no
        # further call.
        self._threads.submit(lambda: None).result()
        self._server = grpc.server(
            self._threads, options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX
        )
        self._server.add_generic_rpc_handlers((_OneMethod(self._call),))
        if endpoint.socket_dir is None:
            self._address = self._listen_on_tcp(endpoint, wanted)
        else:
            self._address = self._listen_on_unix(Path(endpoint.socket_dir))
        self._server.start()

    @property
    def address(self) -> str:
        """The `host:port` or `unix:PATH` at which others reach the server."""
        return self._address

    def close(self) -> None:
        """Accept no further calls. Calls in progress have 0.2 s to finish."""
        self._server.stop(_STOP_GRACE_S).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listen_on_tcp(self, endpoint: Endpoint, wanted: int) -> str:
        bound = f"{bracketed(endpoint.bind_address)}:{wanted}"
        _refuse_taken_port(endpoint.bind_address, wanted)
        try:
            port = self._server.add_insecure_port(bound)
        except RuntimeError as error:
            # gRPC's own message gives no reason, only a variable that enables gRPC's log.
            raise RpcError(
                f"Cannot listen on {bound}: it is not an address of this host, or the port is in "
                "use. Correct jobmanager.host and jobmanager.port, or taskmanager.host and "
                "taskmanager.port: they say where a process of a session cluster listens."
            ) from error
        return endpoint.advertised_address(port)

    def _listen_on_unix(self, folder: Path) -> str:
        try:
            address = f"{UNIX}{new_socket_path(folder)}"
            self._server.add_insecure_port(address)
        except (OSError, RuntimeError) as error:
            raise RpcError(
                f"Cannot listen on a Unix socket in {folder}: {error}. The folder must belong to "
                "this user, with mode 0700, on a disk with free space. TMPDIR names another place."
            ) from error
        return address

    def _call(self, data: bytes, _context: object) -> bytes:
        return calls.handle_call(self._handler, data)


class GrpcClient:
    """A connection to one endpoint, and its successors. Safe to use from several threads."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connections = [_Connection(address)]
        """The open connections. The last one takes calls. The others are doubted, and each is
        closed when its last call ends. Empty after the client is closed.
        """

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send a message and return the reply. RpcError if no reply comes within `timeout_s`
        seconds or the call fails. An error of the handler is raised here.
        """
        end_if_forked()
        data = codec.encode(message)
        connection = self._take()
        if connection is None:
            raise calls.not_sent_error(message, self._address)
        late = False
        try:
            reply: bytes = connection.method(data, timeout=timeout_s)
        except grpc.RpcError as error:
            code = _code_of(error)
            late = code is grpc.StatusCode.DEADLINE_EXCEEDED
            raise calls.failed_error(message, self._address, _why(code, timeout_s)) from error
        except ValueError as error:  # another thread has closed the channel
            raise calls.not_sent_error(message, self._address) from error
        finally:
            self._give_back(connection, doubted=late)
        return calls.decode_reply(reply)

    def close(self) -> None:
        """Close all connections. Calls in progress end with RpcError."""
        with self._lock:
            left, self._connections = self._connections, []
        for connection in left:
            connection.channel.close()

    def _take(self) -> _Connection | None:
        with self._lock:
            if not self._connections:
                return None
            connection = self._connections[-1]
            connection.calls += 1
            return connection

    def _give_back(self, connection: _Connection, *, doubted: bool) -> None:
        with self._lock:
            connection.calls -= 1
            if connection not in self._connections:
                return  # closed with the client
            if doubted and connection is self._connections[-1]:
                self._connections.append(_Connection(self._address))
            over = connection.calls == 0 and connection is not self._connections[-1]
            if over:
                self._connections.remove(connection)
        if over:
            connection.channel.close()


class _Connection:
    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, options=CLIENT_OPTIONS)
        self.method: Callable[..., bytes] = self.channel.unary_unary(_METHOD)
        self.calls = 0
        """The number of calls in progress; guarded by the client's lock."""


def _why(code: grpc.StatusCode | None, timeout_s: float) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return calls.timeout_reason(timeout_s)
    if code is grpc.StatusCode.UNAVAILABLE:
        return calls.NOT_REACHABLE
    return f"gRPC says {code.name if code else 'nothing'}"


def _code_of(error: Any) -> grpc.StatusCode | None:
    """Return the status code of a failed call. gRPC's errors of a call are also calls, although
    the type of the base class does not show that.
    """
    return error.code() if isinstance(error, grpc.Call) else None


class _OneMethod(grpc.GenericRpcHandler):
    def __init__(self, call: Callable[[bytes, Any], bytes]) -> None:
        self._method: Any = grpc.unary_unary_rpc_method_handler(call)

    def service(self, handler_call_details: Any) -> Any:
        return self._method if handler_call_details.method == _METHOD else None
