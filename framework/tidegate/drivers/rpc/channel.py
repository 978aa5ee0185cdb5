"""Both ends of `ports.rpc` over gRPC.

One unary method carries every message: bytes in, bytes out, written and read by `protocol.codec`.
What a handler raises travels as `Failed` and is raised at the caller as the same class (`calls`);
what gRPC itself reports becomes RpcError with the address. No retries here: only the caller knows
what is safe to repeat. A process that forks must never have imported a live server from here (the
zygote imports, but starts nothing).

A connection whose other end is gone without a word (a host that lost its power, a firewall that
forgot it) takes calls for ever and answers none. So one that left a call without its reply is
doubted: later calls get a new one, also where it was still being made. gRPC's own remedy is to ask
each connection every few seconds whether it lives, and whatever happens in a process wakes its pool
of threads dozens of times, also in a cluster that has nothing to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# Before grpc is imported: its fork handlers would only complain, because no process of ours forks
# after it has made a channel; and what it logs by itself at "info" is not for a user's terminal.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from tidegate.drivers.local_sockets import UNIX, new_socket_path
from tidegate.drivers.network import LOOPBACK, Network, bracketed
from tidegate.drivers.rpc import calls
from tidegate.drivers.threads import ThreadPool
from tidegate.errors import RpcError
from tidegate.ports.rpc import Handler
from tidegate.protocol import codec

MESSAGE_BYTES_MAX = 64 << 20
"""A Deploy names every restored file of a slot; 64 MiB is hundreds of thousands of them."""

_SERVER_THREADS = 16
"""Handlers post to a loop and wait for it, so threads cost little; SubmitJob waits for storage."""
_CALLS_MAX = 512
"""Concurrent calls; beyond it gRPC refuses (RESOURCE_EXHAUSTED) and the caller comes again."""
_STOP_GRACE_S = 0.2

_METHOD = "/tidegate.Control/Call"
Options = list[tuple[str, int]]
_LIMITS: Final[Options] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
]
CLIENT_OPTIONS: Final[Options] = [
    *_LIMITS,
    # A restarted process has a new port, so an address that refused is seldom tried again; but
    # where it is (a JobManager with a fixed port), gRPC's default of a second and more would
    # dominate recovery.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, how long a connection may take to be made, its first frames included. As
    # short as the back-off, a process that is busy for a moment is taken for one that is gone.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # A question now and then, for firewalls that forget connections which say nothing: those from
    # the JobManager to its TaskManagers carry no call for days. Less time for its answer would
    # break calls to a machine that is only busy.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of its own questions, behind which ours would wait
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    # Or the successor of a doubted connection would be the same one again.
    ("grpc.use_local_subchannel_pool", 1),
]
_SERVER_OPTIONS: Final[Options] = [
    *_LIMITS,
    ("grpc.so_reuseport", 0),
    # By default a server hangs up on a client that asks more often than every five minutes.
    ("grpc.http2.max_ping_strikes", 0),
]


class GrpcRpc:
    """`ports.rpc.Rpc` by gRPC, for a process that is reached as `network` says."""

    def __init__(self, network: Network = LOOPBACK) -> None:
        self._network = network

    def serve(self, handler: Handler, port: int = 0) -> GrpcServer:
        """Listen; RpcError where that is not possible."""
        return GrpcServer(handler, self._network, port)

    def connect(self, address: str) -> GrpcClient:
        """A client of `host:port` or `unix:PATH`; connects at the first call."""
        return GrpcClient(address)


class GrpcServer:
    """A listening endpoint; handlers run in its threads."""

    def __init__(self, handler: Handler, network: Network, wanted: int) -> None:
        self._handler = handler
        self._threads = ThreadPool(_SERVER_THREADS, thread_name_prefix="rpc")
        # One thread before the first call: gRPC's own thread ends, and the process is deaf from
        # then on, if the pool raises because the operating system refuses it a first thread.
        self._threads.submit(lambda: None).result()
        self._server = grpc.server(
            self._threads, options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX
        )
        self._server.add_generic_rpc_handlers((_OneMethod(self._call),))
        if network.socket_dir is None:
            self._address = self._listen_on_tcp(network, wanted)
        else:
            self._address = self._listen_on_unix(Path(network.socket_dir))
        self._server.start()

    @property
    def address(self) -> str:
        """`host:port` or `unix:PATH`, as others reach it."""
        return self._address

    def close(self) -> None:
        """Take no more calls; those under way get a moment to finish."""
        self._server.stop(_STOP_GRACE_S).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listen_on_tcp(self, network: Network, wanted: int) -> str:
        bound = f"{bracketed(network.listens_on)}:{wanted}"
        try:
            port = self._server.add_insecure_port(bound)
        except RuntimeError as error:
            # What gRPC says names a variable for its own log, and no reason.
            raise RpcError(
                f"Cannot listen on {bound}. Is it an address of this host, and is the port free? "
                "jobmanager.host and jobmanager.port, or taskmanager.host and taskmanager.port, "
                "say where a process of a standing cluster listens."
            ) from error
        return network.advertised_address(port)

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
    """A connection to one endpoint, and its successors; safe to use from several threads."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._lock = threading.Lock()
        self._connections = [_Connection(address)]
        """The last takes calls; those before are doubted, and end with their last call. Empty once
        the client is closed."""

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send and wait for the reply. RpcError when it does not come; else what the handler
        raised.
        """
        data = codec.encode(message)
        connection = self._take()
        if connection is None:
            raise calls.not_sent(message, self._address)
        late = False
        try:
            reply: bytes = connection.method(data, timeout=timeout_s)
        except grpc.RpcError as error:
            code = _code_of(error)
            late = code is grpc.StatusCode.DEADLINE_EXCEEDED
            raise calls.failed(message, self._address, _why(code, timeout_s)) from error
        except ValueError as error:  # it was closed by another thread
            raise calls.not_sent(message, self._address) from error
        finally:
            self._give_back(connection, doubted=late)
        return calls.decode_reply(reply)

    def close(self) -> None:
        """Calls under way end with RpcError."""
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
        """Under way; guarded by the client's lock."""


def _why(code: grpc.StatusCode | None, timeout_s: float) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return calls.timeout_reason(timeout_s)
    if code is grpc.StatusCode.UNAVAILABLE:
        return calls.NOBODY
    return f"gRPC says {code.name if code else 'nothing'}"


def _code_of(error: Any) -> grpc.StatusCode | None:
    """Errors of a call are calls themselves; the type of the base class does not say so."""
    return error.code() if isinstance(error, grpc.Call) else None


class _OneMethod(grpc.GenericRpcHandler):
    def __init__(self, call: Callable[[bytes, Any], bytes]) -> None:
        self._method: Any = grpc.unary_unary_rpc_method_handler(call)

    def service(self, handler_call_details: Any) -> Any:
        return self._method if handler_call_details.method == _METHOD else None
