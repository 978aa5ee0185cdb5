"""Both ends of `ports.rpc` over gRPC.

One unary method carries every message: bytes in, bytes out, written and read by `protocol.codec`.
What a handler raises travels as `Failed` and is raised at the caller as the same class (`calls`);
what gRPC itself reports becomes RpcError with the address. No retries here: only the caller knows
what is safe to repeat. A process that forks must never have imported a live server from here (the
zygote imports, but starts nothing).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# Before grpc is imported: its fork handlers would only complain, because no process of ours forks
# after it has made a channel; and what it logs by itself at "info" is not for a user's terminal.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from tidegate.drivers.network import THIS_HOST, Network, bracketed
from tidegate.drivers.rpc import calls
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
_LIMITS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
]
_CLIENT_OPTIONS = [
    *_LIMITS,
    # A restarted process has a new port, so an address that refused is seldom tried again; but
    # where it is (a JobManager with a fixed port), gRPC's default of a second and more would
    # dominate recovery.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Despite its name, how long a connection may take to be made, its first frames included. As
    # short as the back-off, a process that is busy for a moment is taken for one that is gone.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    # A connection whose other end is gone without a word (a host that lost its power, a firewall
    # that forgot it) takes calls for ever and answers none. So each is asked, also while no call
    # is under way, and replaced when it was silent for as long as a process may be: the heartbeat
    # timeout's default. Less would break calls to a machine that is only busy.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of its own questions, behind which ours would wait
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
_SERVER_OPTIONS = [
    *_LIMITS,
    ("grpc.so_reuseport", 0),
    # By default a server hangs up on a client that asks more often than every five minutes.
    ("grpc.http2.max_ping_strikes", 0),
]


class GrpcRpc:
    """`ports.rpc.Rpc` by gRPC, for a process that is reached as `network` says."""

    def __init__(self, network: Network = THIS_HOST) -> None:
        self._network = network

    def serve(self, handler: Handler, port: int = 0) -> GrpcServer:
        """Listen; RpcError where that is not possible."""
        return GrpcServer(handler, self._network, port)

    def connect(self, address: str) -> GrpcClient:
        """A client of `host:port`; connects at the first call."""
        return GrpcClient(address)


class GrpcServer:
    """A listening endpoint; handlers run in its threads."""

    def __init__(self, handler: Handler, network: Network, wanted: int) -> None:
        self._handler = handler
        self._threads = ThreadPoolExecutor(_SERVER_THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(
            self._threads, options=_SERVER_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX
        )
        self._server.add_generic_rpc_handlers((_OneMethod(self._call),))
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
        self._address = network.shown(port)
        self._server.start()

    @property
    def address(self) -> str:
        """`host:port`, as others reach it."""
        return self._address

    def close(self) -> None:
        """Take no more calls; those under way get a moment to finish."""
        self._server.stop(_STOP_GRACE_S).wait()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _call(self, data: bytes, _context: object) -> bytes:
        return calls.answer(self._handler, data)


class GrpcClient:
    """A connection to one endpoint; safe to use from several threads."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address, options=_CLIENT_OPTIONS)
        self._method: Callable[..., bytes] = self._channel.unary_unary(_METHOD)

    def call(self, message: Any, timeout_s: float = 10.0) -> Any:
        """Send and wait for the reply. RpcError when it does not come; else what the handler
        raised.
        """
        try:
            data: bytes = self._method(codec.encode(message), timeout=timeout_s)
        except grpc.RpcError as error:
            why = _why(_code_of(error), timeout_s)
            raise calls.failed(message, self._address, why) from error
        except ValueError as error:  # the channel was closed by another thread
            raise calls.not_sent(message, self._address) from error
        return calls.result(data)

    def close(self) -> None:
        """Calls under way end with RpcError."""
        self._channel.close()


def _why(code: grpc.StatusCode | None, timeout_s: float) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return calls.in_time(timeout_s)
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
