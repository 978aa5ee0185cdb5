"""The JobMaster's connection to one slot. It repeats each message until the slot has accepted it.

Each slot of the live attempt has its own thread. So a slow slot does not delay the other slots, and
two messages to one slot always keep their order. Messages are numbered, because a try that seemed
to fail may still arrive at any later time. The slot ignores a number that it has already accepted.
A slot that is silent for the heartbeat timeout, or that refuses a message, is reported as lost,
once. The report ends the attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from tidegate.errors import RpcError, TidegateError
from tidegate.ports.clock import Clock
from tidegate.ports.rpc import RpcClient
from tidegate.ports.threads import Queue, Threads
from tidegate.protocol.messages import Refused, SlotCommand

RETRY_PAUSE_S: Final = 0.02
"""The pause between two tries, in seconds. A slot that starts or is busy answers again within
milliseconds."""


class SlotGateway:
    """A sender of messages to one slot, until it is closed."""

    def __init__(
        self,
        client: RpcClient,
        clock: Clock,
        threads: Threads,
        *,
        name: str,
        timeout_s: float,
        lost: Callable[[str], None],
    ) -> None:
        self._client, self._clock, self._timeout_s, self._lost = client, clock, timeout_s, lost
        self._outgoing: Queue[SlotCommand | None] = threads.queue()
        self._closed = False
        threads.start(self._send_all, name=f"to-{name}")

    def send(self, message: SlotCommand) -> None:
        """Deliver a message after all earlier ones. This never blocks."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Deliver the messages that were sent, if the slot still answers, then end the thread."""
        self._outgoing.put(None)
        self._closed = True

    def _send_all(self) -> None:
        sequence = 0
        while (message := self._outgoing.get()) is not None:
            sequence += 1
            try:
                taken = self._deliver(msgspec.structs.replace(message, sequence=sequence))
            except Exception as error:  # noqa: BLE001  # else the slot would receive no message
                described = f"{type(error).__name__}: {error}"
                self._lost(f"{type(message).__name__} cannot be sent: {described}")
                break
            if not taken:
                break
        self._client.close()

    def _deliver(self, message: SlotCommand) -> bool:
        deadline_s = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                reply = self._client.call(message, timeout_s=self._timeout_s / 3)
            except RpcError as error:
                if self._closed:
                    return False  # the attempt is over, and most likely the slot has ended
                if self._clock.monotonic() >= deadline_s:
                    self._lost(f"it does not answer: {error}")
                    return False
                self._clock.sleep(RETRY_PAUSE_S)
                continue
            except TidegateError as error:
                # A repeated message would fail there again. Without this thread the slot would
                # receive no message.
                self._lost(f"it cannot take {type(message).__name__}: {error}")
                return False
            if isinstance(reply, Refused):
                if not self._closed:
                    self._lost(f"it refused {type(message).__name__}: {reply.reason}")
                return False
            return True
