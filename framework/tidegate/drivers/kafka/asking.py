"""Questions to a Kafka cluster that outlive the broker that was asked.

librdkafka's admin client learns the leaders of partitions and the controller once. A client that is
made between a broker's death and its failover waits for the dead broker until its request times
out, and each further request of it waits again. It then says nothing of the partitions whose leader
it missed: their offset is "invalid", and that is no error.

So a question that has no answer after a second is asked again with a new client, which learns the
leaders anew. The earlier ones go on, because a broker may only be slow. Questions change nothing on
the cluster, so who answers first counts. This module decides nothing about what an answer means.

Invariant: a client is held until all of its questions are answered or have timed out. Its own
thread runs Python then, and may collect garbage. If the client were garbage, librdkafka would be
asked to end a thread by that very thread, and would abort the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka.admin import AdminClient

K = TypeVar("K")

ASK_AGAIN_S: Final = 1.0
"""Without an answer for so long, another client asks. A broker that lives answers within
milliseconds."""
PAUSE_S: Final = 0.05
"""Between two questions where the first was refused for a moment: a new topic has no leader for
milliseconds."""


_held: list[tuple[AdminClient, list[Future[Any]]]] = []
_holding = threading.Lock()


def _hold(client: AdminClient, futures: Iterable[Future[Any]]) -> None:
    """Keep a client until these are done, and let go of those that are; in a thread of ours."""
    with _holding:
        let_go = [one for one in _held if all(future.done() for future in one[1])]
        _held[:] = [one for one in _held if one not in let_go]
        _held.append((client, list(futures)))
    del let_go  # without the lock: the end of a client takes its time


class AdminClients:
    """The admin client that is asked, and how the next is made."""

    def __init__(self, make: Callable[[], AdminClient]) -> None:
        self._make = make
        self.current = make()

    def renew(self) -> None:
        """Take another client from now on; the old one lives as long as somebody holds it."""
        self.current = self._make()


class Question(Generic[K]):
    """One question about several things, each with an answer of its own."""

    def __init__(
        self,
        clients: AdminClients,
        ask: Callable[[AdminClient, list[K], float], Mapping[K, Future[Any]]],
        passing: Callable[[Any], bool],
    ) -> None:
        """`ask` is given the client, what is missing, and the seconds that are left. `passing` says
        of an error of Kafka whether another try may help.
        """
        self._clients, self._ask, self._passing = clients, ask, passing
        self._pending: list[tuple[AdminClient, K, Future[Any]]] = []
        self.found: dict[K, Any] = {}
        self.failed: dict[K, KafkaException] = {}
        """Why there is no answer; of those without a reason, nobody has said anything."""

    def answer(self, about: Iterable[K], timeout_s: float, *, enough: bool = False) -> bool:
        """Ask until each has an answer, or an error that is not passing; False where the time was
        over before. `enough`: what is missing a second after the first question is left out if
        anything was answered by then.
        """
        asked = list(about)
        now_s = began_s = time.monotonic()
        end_s = began_s + timeout_s
        renew_s = began_s + ASK_AGAIN_S
        while missing := self._missing(asked):
            if now_s >= end_s:
                return False
            client = self._clients.current
            futures = self._ask(client, missing, end_s - now_s)
            _hold(client, futures.values())
            self._pending += [(client, each, future) for each, future in futures.items()]
            self._hear(asked, min(renew_s, end_s))
            now_s = time.monotonic()
            if not self._missing(asked):
                break
            if now_s < renew_s:  # refused for a moment, by all who were asked
                time.sleep(PAUSE_S)
            elif enough and self.found:
                break
            else:
                self._clients.renew()
                renew_s = now_s + ASK_AGAIN_S
        return True

    def _hear(self, asked: list[K], until_s: float) -> None:
        """Take answers until that time, until nothing is missing, or until nobody can give any."""
        while self._pending and self._missing(asked):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            wait([future for _, _, future in self._pending], left_s, FIRST_COMPLETED)
            for _, each, future in self._pending:
                if future.done():
                    self._take(each, future)
            self._pending = [each for each in self._pending if not each[2].done()]

    def _missing(self, asked: list[K]) -> list[K]:
        """What has neither an answer nor an error for good."""
        return [each for each in asked if each not in self.found and not self._is_final(each)]

    def _take(self, about: K, future: Future[Any]) -> None:
        try:
            answer = future.result()
        except KafkaException as error:
            self.failed[about] = error
            return
        # Of a partition whose leader has not answered in time the client makes no error.
        if getattr(answer, "offset", 0) != OFFSET_INVALID:
            self.found[about] = answer

    def _is_final(self, about: K) -> bool:
        error = self.failed.get(about)
        return error is not None and not self._passing(error.args[0])


def explained(
    answer: Future[Any], explanation: Future[Any], explains: Callable[[Any, Any], bool]
) -> Future[Any]:
    """The answer, or the error of the explanation in place of its own if that `explains` it.

    `explains` is given the codes of the answer's error and of the explanation's.
    """
    told: Future[Any] = Future()

    def answered(_: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            told.set_result(answer.result())
        else:
            explanation.add_done_callback(partial(explain, error))

    def explain(error: BaseException, _: Future[Any]) -> None:
        why = explanation.exception()
        if (
            isinstance(error, KafkaException)
            and isinstance(why, KafkaException)
            and explains(error.args[0].code(), why.args[0].code())
        ):
            told.set_exception(why)
        else:
            told.set_exception(error)

    answer.add_done_callback(answered)
    return told
