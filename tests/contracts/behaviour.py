"""What processes under test do: named by a word or two, the same for a real and a simulated one.

Apart from the contract, because processes that behave so import nothing of pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from tidegate.errors import check
from tidegate.ids import Attempt, JobName, LeaderEpoch
from tidegate.ports.processes import Child, ExitStatus, ForkServer, ForkServerEvent, SlotForked
from tidegate.protocol.messages import StartSlot


def start_slot(index: int, does: str) -> StartSlot:
    """The request for a slot with this behaviour."""
    return StartSlot(
        epoch=LeaderEpoch(1),
        index=index,
        ordinal=index,
        job=JobName("job"),
        attempt=Attempt(1),
        jobmaster_address="nowhere",
        working_folder=".",
        settings={"does": does},
    )


class Starter(Protocol):
    """Starts processes with a given behaviour."""

    def spawn(
        self,
        does: str,
        on_exit: Callable[[ExitStatus], None],
        on_ready: Callable[[dict[str, Any]], None] | None = None,
    ) -> Child: ...

    def start_fork_server(self, listener: Callable[[ForkServerEvent], None]) -> ForkServer:
        """Its slots do what their StartSlot says in `settings["does"]`."""
        ...


class ProcessUnderTest(Protocol):
    """The process that behaves."""

    pid: int

    def announce(self, facts: dict[str, Any]) -> None: ...

    def wait(self) -> NoReturn:
        """Waits for ever."""
        ...

    def starter(self) -> Starter: ...


def behave(does: str, process: ProcessUnderTest) -> int:
    """The main of every process under test; returns its exit status."""
    match does.split():
        case ["exit", status]:
            return int(status)
        case ["raise"]:
            raise RuntimeError("as the test wishes")
        case ["announce"]:
            process.announce({"pid": process.pid, "text": "two\nlines, ä"})
        case ["parent"]:
            child = process.starter().spawn("wait", lambda _status: None)
            process.announce({"child": child.pid})
        case ["taskmanager"]:

            def listener(event: ForkServerEvent) -> None:
                if isinstance(event, SlotForked):
                    process.announce({"fork-server": fork_server.pid, "slot": event.pid})

            fork_server = process.starter().start_fork_server(listener)
            fork_server.fork(start_slot(0, "wait"))
        case _:
            check(does == "wait", f"nobody knows how to {does}")
    return process.wait()
