"""The contract of `ports/rpc.py`: what every driver of control messages does.

A test class inherits it and gives both ends. Nothing here says how often a message arrives whose
reply did not come: that is open, and the caller's to bear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.contracts.surroundings import TIMEOUT_S, ContractEnvironment
from tidegate.errors import FencedError, InternalError, RpcError, SystemCallError, UserCodeError
from tidegate.ids import Attempt, JobName, LeaderEpoch
from tidegate.ports.rpc import Handler, Rpc, RpcClient, RpcServer
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import Acknowledge, GetJob, ListJobs, Message, Refused, StartSlot
from tidegate.protocol.reports import JobReport


@dataclass
class Ends:
    """Makes servers and clients, and closes them after the test."""

    rpc: Rpc
    _made: list[RpcServer | RpcClient] = field(default_factory=list)

    def serve(self, handler: Handler) -> RpcServer:
        server = self.rpc.serve(handler)
        self._made.append(server)
        return server

    def client(self, address: str) -> RpcClient:
        client = self.rpc.connect(address)
        self._made.append(client)
        return client

    def pair(self, handler: Handler) -> RpcClient:
        """A client of a new server."""
        return self.client(self.serve(handler).address)

    def close(self) -> None:
        for end in reversed(self._made):
            end.close()


def start_slot(settings: dict[str, object]) -> StartSlot:
    """A message that carries what can change in place, and what may not be encodable."""
    return StartSlot(
        epoch=LeaderEpoch(1),
        index=0,
        ordinal=0,
        job=JobName("a"),
        attempt=Attempt(1),
        jobmaster_address="here",
        working_folder="/",
        settings=settings,
    )


class RpcContract:
    """Inherit, and override the fixture `rpc`, and `environment` where time is not real."""

    @pytest.fixture
    def rpc(self) -> Rpc:
        raise NotImplementedError

    @pytest.fixture
    def environment(self) -> ContractEnvironment:
        return ContractEnvironment()

    @pytest.fixture
    def ends(self, rpc: Rpc) -> Iterator[Ends]:
        ends = Ends(rpc)
        yield ends
        ends.close()

    # --- a call and its reply ---

    def test_call_returns_the_reply_of_the_handler(self, ends: Ends) -> None:
        seen: list[Message] = []

        def handler(message: Message) -> Message:
            seen.append(message)
            return JobReport(job=JobName("a"), state=JobState.RUNNING)

        reply = ends.pair(handler).call(GetJob(job=JobName("a")))
        assert reply == JobReport(job=JobName("a"), state=JobState.RUNNING)
        assert seen == [GetJob(job=JobName("a"))]

    def test_client_reaches_the_server_at_its_address(self, ends: Ends) -> None:
        one = ends.serve(lambda _: Refused(reason="one"))
        two = ends.serve(lambda _: Refused(reason="two"))
        assert one.address != two.address
        assert ends.client(two.address).call(ListJobs()) == Refused(reason="two")
        assert ends.client(one.address).call(ListJobs()) == Refused(reason="one")

    def test_client_and_server_share_no_objects(self, ends: Ends) -> None:
        kept: list[StartSlot] = []

        def handler(message: StartSlot) -> Message:
            message.settings["list"].append("changed by the handler")  # type: ignore[attr-defined]
            reply = start_slot({"replied": [1]})
            kept.append(reply)
            return reply

        sent = start_slot({"list": ["as sent"]})
        reply = ends.pair(handler).call(sent)
        assert sent.settings == {"list": ["as sent"]}
        reply.settings["replied"].append(2)
        assert kept[0].settings == {"replied": [1]}

    def test_calls_do_not_wait_for_each_other(
        self, ends: Ends, environment: ContractEnvironment
    ) -> None:
        leave = environment.event()

        def handler(message: Message) -> Message:
            if isinstance(message, GetJob):
                leave.wait(TIMEOUT_S)
            return Acknowledge()

        client = ends.pair(handler)
        slow = environment.run_in_parallel(
            lambda: client.call(GetJob(job=JobName("slow")), TIMEOUT_S)
        )
        assert client.call(ListJobs()) == Acknowledge()
        assert not leave.is_set()
        leave.set()
        slow()

    def test_many_threads_may_share_a_client(
        self, ends: Ends, environment: ContractEnvironment
    ) -> None:
        client = ends.pair(lambda message: message)
        wrong: list[str] = []

        def calls(number: int) -> None:
            for turn in range(50):
                sent = Refused(reason=f"{number}: {turn}")
                if client.call(sent) != sent:
                    wrong.append(sent.reason)

        joins = [environment.run_in_parallel(partial(calls, number)) for number in range(8)]
        for join in joins:
            join()
        assert wrong == []

    def test_handler_may_call_its_own_server(self, ends: Ends) -> None:
        def handler(message: Message) -> Message:
            if isinstance(message, ListJobs):
                return Refused(reason="from within")
            return ends.client(address).call(ListJobs())  # type: ignore[no-any-return]

        address = ends.serve(handler).address
        assert ends.client(address).call(Acknowledge()) == Refused(reason="from within")

    # --- errors ---

    @pytest.mark.parametrize(
        ("raised", "arrives", "words"),
        [
            (FencedError("a newer claim"), FencedError, "a newer claim"),
            (UserCodeError("step x failed"), UserCodeError, "step x failed"),
            (KeyError("ours"), InternalError, "KeyError: 'ours'"),
            (ConnectionResetError("by peer"), SystemCallError, "ConnectionResetError: by peer"),
        ],
    )
    def test_exception_of_a_handler_is_raised_at_the_caller(
        self, ends: Ends, raised: Exception, arrives: type[Exception], words: str
    ) -> None:
        def handler(message: Message) -> Message:
            if isinstance(message, ListJobs):
                raise raised
            return Acknowledge()

        client = ends.pair(handler)
        with pytest.raises(arrives, match=words) as caught:
            client.call(ListJobs())
        assert type(caught.value) is arrives
        assert client.call(Acknowledge()) == Acknowledge(), "the server goes on"

    def test_message_that_cannot_be_encoded_is_not_sent(self, ends: Ends) -> None:
        seen: list[Message] = []

        def handler(message: Message) -> Message:
            seen.append(message)
            return Acknowledge()

        client = ends.pair(handler)
        with pytest.raises(TypeError):
            client.call(start_slot({"what": object()}))
        assert client.call(ListJobs()) == Acknowledge()
        assert seen == [ListJobs()]

    def test_reply_that_cannot_be_encoded_raises_internal_error_at_the_caller(
        self, ends: Ends
    ) -> None:
        client = ends.pair(lambda _: start_slot({"what": object()}))
        with pytest.raises(InternalError, match="TypeError"):
            client.call(ListJobs())

    # --- no answer ---

    def test_call_without_a_server_fails_at_once_and_names_the_address(
        self, ends: Ends, rpc: Rpc, environment: ContractEnvironment
    ) -> None:
        server = rpc.serve(lambda _: Acknowledge())
        address = server.address
        server.close()
        began = environment.clock.monotonic()
        with pytest.raises(RpcError, match=f"ListJobs to {address} failed: no process answers"):
            ends.client(address).call(ListJobs(), timeout_s=TIMEOUT_S)
        assert environment.clock.monotonic() - began < TIMEOUT_S / 2

    def test_call_fails_after_its_timeout_and_the_handler_may_still_finish(
        self, ends: Ends, environment: ContractEnvironment
    ) -> None:
        leave, done = environment.event(), environment.event()

        def handler(message: Message) -> Message:
            if isinstance(message, ListJobs):
                leave.wait(TIMEOUT_S)
                done.set()
            return Acknowledge()

        client = ends.pair(handler)
        assert client.call(GetJob(job=JobName("a"))) == Acknowledge()  # so the connection is there
        began = environment.clock.monotonic()
        with pytest.raises(RpcError, match="no reply within 1 s"):
            client.call(ListJobs(), timeout_s=1.0)
        assert 0.9 < environment.clock.monotonic() - began < TIMEOUT_S
        assert not done.is_set()
        leave.set()
        assert done.wait(TIMEOUT_S)

    def test_a_server_that_closes_leaves_no_caller_waiting(
        self, ends: Ends, environment: ContractEnvironment
    ) -> None:
        leave, called = environment.event(), environment.event()

        def handler(_: Message) -> Message:
            called.set()
            leave.wait(TIMEOUT_S)
            return Acknowledge()

        server = ends.serve(handler)
        client = ends.client(server.address)

        def call() -> None:
            with pytest.raises(RpcError, match=server.address):
                client.call(ListJobs(), timeout_s=10 * TIMEOUT_S)

        join = environment.run_in_parallel(call)
        assert called.wait(TIMEOUT_S)
        server.close()
        join()
        leave.set()
        with pytest.raises(RpcError, match="no process answers"):
            client.call(ListJobs())

    def test_a_client_that_is_closed_leaves_no_caller_waiting_and_sends_nothing(
        self, ends: Ends, environment: ContractEnvironment
    ) -> None:
        leave, called = environment.event(), environment.event()
        seen: list[Message] = []

        def handler(message: Message) -> Message:
            seen.append(message)
            called.set()
            leave.wait(TIMEOUT_S)
            return Acknowledge()

        client = ends.pair(handler)

        def call() -> None:
            with pytest.raises(RpcError):
                client.call(ListJobs(), timeout_s=10 * TIMEOUT_S)

        join = environment.run_in_parallel(call)
        assert called.wait(TIMEOUT_S)
        client.close()
        join()
        leave.set()
        with pytest.raises(RpcError, match="its connection is shut"):
            client.call(Acknowledge())
        assert seen == [ListJobs()]

    def test_client_and_server_may_be_closed_twice(self, rpc: Rpc) -> None:
        server = rpc.serve(lambda _: Acknowledge())
        client = rpc.connect(server.address)
        assert client.call(ListJobs()) == Acknowledge()
        for end in (client, server):
            end.close()
            end.close()
