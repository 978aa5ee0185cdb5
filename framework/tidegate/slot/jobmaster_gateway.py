"""The slot's connection to its JobMaster. It sends messages in order, and heartbeats.

One thread sends the messages, so that an acknowledgement never overtakes an earlier one. Each
message is repeated until the JobMaster has accepted or refused it. A slot ends its process if its
JobMaster refuses a message or is silent for the heartbeat timeout. Another attempt repeats the work
since the last checkpoint. The slot must not continue as a zombie after it has noticed the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidegate.config import Config
from tidegate.errors import RpcError, TidegateError
from tidegate.ids import Attempt, JobName
from tidegate.ports.clock import Clock
from tidegate.ports.rpc import RpcClient
from tidegate.ports.threads import Queue, Threads
from tidegate.protocol.messages import Message, Refused, SlotHeartbeat
from tidegate.protocol.slot_metrics import SlotMetrics

_RETRY_PAUSE_S = 0.05
"""The pause between two tries of a message, in seconds. The restart of a JobMaster takes about
0.2 s."""

_log = logging.getLogger(__name__)


class JobMasterGateway:
    """The sender of the slot's messages. `on_lost` is called with a reason when the JobMaster is
    lost or refuses a message, or when sending fails.
    """

    def __init__(
        self,
        *,
        client: RpcClient,
        clock: Clock,
        threads: Threads,
        config: Config,
        on_lost: Callable[[str], None],
    ) -> None:
        self._client, self._clock, self._threads = client, clock, threads
        self._on_lost = on_lost
        self._interval_s = config.cluster.heartbeat_interval / 1000
        self._quiet_s = config.cluster.quiet_interval / 1000
        self._timeout_s = config.cluster.heartbeat_timeout / 1000
        self._outgoing: Queue[tuple[Message, Callable[[], None] | None]] = threads.queue()
        threads.start(self._send_all, name="control")

    def send(self, message: Message, then: Callable[[], None] | None = None) -> None:
        """Deliver a message, in the order of the calls. The sending thread calls `then` once the
        JobMaster has accepted the message.
        """
        self._outgoing.put((message, then))

    def start_heartbeat(
        self, job: JobName, attempt: Attempt, ordinal: int, metrics: Callable[[], SlotMetrics]
    ) -> None:
        """Report metrics from a thread of its own. It sends changed metrics every heartbeat
        interval, and unchanged metrics every `cluster.quiet_interval`.
        """

        def send_heartbeats() -> None:
            try:
                beat_on()
            except Exception as error:  # noqa: BLE001  # without heartbeats the slot counts as lost
                self._on_lost(f"SlotHeartbeat cannot be sent: {type(error).__name__}: {error}")

        def beat_on() -> None:
            pause = self._threads.event()
            told, told_s = None, 0.0
            while not pause.wait(self._interval_s):
                now, now_s = metrics(), self._clock.monotonic()
                if now == told and now_s - told_s < self._quiet_s:
                    continue
                told, told_s = now, now_s
                self._deliver(SlotHeartbeat(job=job, attempt=attempt, ordinal=ordinal, metrics=now))

        self._threads.start(send_heartbeats, name="heartbeat")

    def _send_all(self) -> None:
        while True:
            message, then = self._outgoing.get()
            try:
                if self._deliver(message) and then is not None:
                    then()
            except Exception as error:  # noqa: BLE001  # without this thread nothing is sent
                described = f"{type(error).__name__}: {error}"
                self._on_lost(f"{type(message).__name__} cannot be sent: {described}")

    def _deliver(self, message: Message) -> bool:
        """Send a message until the JobMaster answers. Return False if the JobMaster refused the
        message, could not handle it, or stayed silent.
        """
        give_up = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                reply = self._client.call(message, timeout_s=self._timeout_s / 3)
            except RpcError as error:
                if self._clock.monotonic() >= give_up:
                    self._on_lost(f"the JobMaster does not answer: {error}")
                    return False
                self._clock.sleep(_RETRY_PAUSE_S)
                continue
            except TidegateError as error:
                # A repeated message would fail there again. Without this thread nothing is sent.
                self._on_lost(f"the JobMaster cannot take {type(message).__name__}: {error}")
                return False
            if isinstance(reply, Refused):
                self._on_lost(f"the JobMaster refused {type(message).__name__}: {reply.reason}")
                return False
            return True
