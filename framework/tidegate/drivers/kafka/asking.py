"""Questions to a Kafka cluster that get an answer even if the broker that was asked has died.

librdkafka's admin client reads the leaders of partitions and the controller once. If a client is
made between a broker's death and its failover, each of its requests waits for the dead broker until
the request times out. The client then gives no error for the partitions whose leader it missed:
their offset is "invalid".

So a question without an answer after a second is asked again with a new client, which reads the
leaders again. The earlier requests continue, because a broker may only be slow. The repetition of a
question does no harm, so the first answer counts. This module does not interpret the answers.

Invariant: a client is kept until all of its questions are answered or have timed out. When they
are, the client's own thread runs Python and may collect garbage. If the client were garbage, this
thread would ask librdkafka to end the thread itself, and librdkafka would abort the process. So no
client is part of a reference cycle either: only the collector would end it, whenever that comes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Final, Generic, TypeVar

from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka.admin import AdminClient

K = TypeVar("K")

RENEW_CLIENT_S: Final = 1.0
"""The time without an answer, in seconds, after which a new client asks. A healthy broker answers
within milliseconds.
"""
PAUSE_S: Final = 0.05
"""The pause in seconds before a question is repeated after a temporary error: a new topic has no
leader for some milliseconds.
"""

_log = logging.getLogger(__name__)
_kept_clients: list[tuple[AdminClient, list[Future[Any]]]] = []
_kept_clients_lock = threading.Lock()


def _keep_client(client: AdminClient, futures: Iterable[Future[Any]]) -> None:
    """Keep a client until its futures are done, and drop the clients whose futures are done."""
    _drop_finished_clients()
    with _kept_clients_lock:
        _kept_clients.append((client, list(futures)))


def _drop_finished_clients() -> None:
    """Drop the clients whose futures are done. The caller must not be a thread of librdkafka."""
    with _kept_clients_lock:
        done = [one for one in _kept_clients if all(future.done() for future in one[1])]
        _kept_clients[:] = [one for one in _kept_clients if one not in done]
    del done  # after the lock is released: to close a client takes time


def _drop_finished_clients_after(futures: Sequence[Future[Any]]) -> None:
    """Drop the clients of these futures soon after the last one is done.

    The next question would drop them too, but it may come hours later. Until then, each client has
    threads and connections, and one whose broker has died tries to connect again and again.
    """

    def drop() -> None:
        wait(futures)
        time.sleep(PAUSE_S)  # by then, the clients' threads run no Python
        _drop_finished_clients()

    try:
        threading.Thread(target=drop, name="admin-clients", daemon=True).start()
    except RuntimeError:  # the system refuses another thread
        _log.warning("no thread can be started: the next question drops the clients of this one")


class AdminClients:
    """The current admin client, and the function that makes the next one."""

    def __init__(self, make: Callable[[], AdminClient]) -> None:
        self._make = make
        self.current = make()

    def renew(self) -> None:
        """Use a new client from now on. The old client lives as long as it is referenced."""
        self.current = self._make()

    def close(self) -> None:
        """Drop the current client. It ends now, or when its open questions have timed out."""
        del self.current
        _drop_finished_clients()


class Question(Generic[K]):
    """One question about several things, each of which has its own answer."""

    def __init__(
        self,
        clients: AdminClients,
        ask: Callable[[AdminClient, list[K], float], Mapping[K, Future[Any]]],
        is_retriable: Callable[[Any], bool],
    ) -> None:
        """Store the functions. `ask` gets the client, the things without an answer, and the
        remaining seconds. `is_retriable` returns whether another try may help after an error of
        Kafka.
        """
        self._clients, self._ask, self._is_retriable = clients, ask, is_retriable
        self._pending: list[tuple[AdminClient, K, Future[Any]]] = []
        self._renewed = False
        self.found: dict[K, Any] = {}
        self.failed: dict[K, KafkaException] = {}
        """The last error of each thing. A thing in neither `found` nor `failed` had no reply."""

    def answer(self, about: Iterable[K], timeout_s: float, *, enough: bool = False) -> bool:
        """Ask until each thing has an answer or a permanent error. Return False if the time was
        over before that. With `enough`, stop a second after the first question if at least one
        thing has an answer; the others are left out.
        """
        try:
            return self._answer(list(about), timeout_s, enough=enough)
        finally:
            if self._pending or self._renewed:
                _drop_finished_clients_after([future for _, _, future in self._pending])

    def _answer(self, asked: list[K], timeout_s: float, *, enough: bool) -> bool:
        now_s = began_s = time.monotonic()
        end_s = began_s + timeout_s
        renew_s = began_s + RENEW_CLIENT_S
        while missing := self._missing(asked):
            if now_s >= end_s:
                return False
            client = self._clients.current
            futures = self._ask(client, missing, end_s - now_s)
            _keep_client(client, futures.values())
            self._pending += [(client, each, future) for each, future in futures.items()]
            self._collect_answers(asked, min(renew_s, end_s))
            now_s = time.monotonic()
            if not self._missing(asked):
                break
            if now_s < renew_s:  # all requests have returned, some with a temporary error
                time.sleep(PAUSE_S)
            elif enough and self.found:
                break
            else:
                self._clients.renew()
                self._renewed = True
                renew_s = now_s + RENEW_CLIENT_S
        return True

    def _collect_answers(self, asked: list[K], until_s: float) -> None:
        """Take answers until `until_s`, until nothing is missing, or until no request is open."""
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
        """Return the things with neither an answer nor a permanent error."""
        return [each for each in asked if each not in self.found and not self._is_final(each)]

    def _take(self, about: K, future: Future[Any]) -> None:
        try:
            answer = future.result()
        except KafkaException as error:
            self.failed[about] = error
            return
        # The client gives no error for a partition whose leader has not answered in time.
        if getattr(answer, "offset", 0) != OFFSET_INVALID:
            self.found[about] = answer

    def _is_final(self, about: K) -> bool:
        error = self.failed.get(about)
        return error is not None and not self._is_retriable(error.args[0])


def explained(
    answer: Future[Any], explanation: Future[Any], explains: Callable[[Any, Any], bool]
) -> Future[Any]:
    """Return a future with the answer. If the answer is an error that the explanation's error
    explains, the future has the explanation's error instead.

    `explains` gets the codes of the answer's error and of the explanation's error.
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
