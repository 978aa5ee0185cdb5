"""The JobMaster's line to one slot: messages in order, each repeated until the slot has taken it.

One thread for each slot of the live attempt, so that a slow slot delays nobody else and two
messages to one slot never change places. They are numbered, because a try that seemed to fail may
arrive all the same, at any later time: the slot passes over what it has taken. A slot that stays
silent for the heartbeat timeout, or refuses, is reported lost, once; the attempt ends by that.
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
"""Between two tries: a slot that is starting or busy is back within milliseconds."""


class SlotGateway:
    """Sends messages to one slot until it is closed."""

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
        """Deliver after everything sent before; never blocks."""
        self._outgoing.put(message)

    def close(self) -> None:
        """Deliver what was sent, if the slot still answers, and end the thread."""
        self._outgoing.put(None)
        self._closed = True

    def _send_all(self) -> None:
        number = 0
        while (message := self._outgoing.get()) is not None:
            number += 1
            try:
                taken = self._deliver(msgspec.structs.replace(message, number=number))
            except Exception as error:  # noqa: BLE001  # else the slot would hear nothing any more
                described = f"{type(error).__name__}: {error}"
                self._lost(f"{type(message).__name__} cannot be sent: {described}")
                break
            if not taken:
                break
        self._client.close()

    def _deliver(self, message: SlotCommand) -> bool:
        give_up_s = self._clock.monotonic() + self._timeout_s
        while True:
            try:
                reply = self._client.call(message, timeout_s=self._timeout_s / 3)
            except RpcError as error:
                if self._closed:
                    return False  # the attempt is over; most likely so is the slot
                if self._clock.monotonic() >= give_up_s:
                    self._lost(f"it does not answer: {error}")
                    return False
                self._clock.sleep(RETRY_PAUSE_S)
                continue
            except TidegateError as error:
                # It failed there and would again; without this thread the slot would hear nothing.
                self._lost(f"it cannot take {type(message).__name__}: {error}")
                return False
            if isinstance(reply, Refused):
                if not self._closed:
                    self._lost(f"it refused {type(message).__name__}: {reply.reason}")
                return False
            return True
