"""A real Jupyter kernel for tests: runs cells as a notebook does, and interrupts them.

The kernel is a process of this environment. It ends with its owner.
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

CELL_S_MAX = 90.0
_MESSAGE_S = 1.0
_POLL_S = 0.05

When = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class CellOutput:
    """The text that a cell has printed, and the error that has ended it, as `Name: text`."""

    text: str
    error: str


class Notebook:
    """A running kernel. One cell runs at a time."""

    def __init__(
        self, runner: asyncio.Runner, manager: AsyncKernelManager, client: AsyncKernelClient
    ) -> None:
        self._runner, self._manager, self._client = runner, manager, client
        self._printed: list[str] = []

    def run(self, cell: str) -> str:
        """Run a cell that must not fail, and return what it has printed."""
        done = self.execute(cell)
        assert not done.error, done.error + done.text
        return done.text

    def execute(self, cell: str, *, interrupt_when: When = lambda _: False) -> CellOutput:
        """Run a cell to its end.

        Interrupt the kernel, as the stop button does, each time that `interrupt_when` accepts what
        the cell has printed since the last interrupt.
        """
        self._printed = []
        return self._runner.run(self._execute(cell, interrupt_when))

    async def _execute(self, cell: str, interrupt_when: When) -> CellOutput:
        watch = asyncio.create_task(self._interrupt(interrupt_when))
        try:
            async with asyncio.timeout(CELL_S_MAX):
                return await self._finished(self._client.execute(cell, allow_stdin=False))
        finally:
            watch.cancel()

    async def _interrupt(self, when: When) -> None:
        seen = 0
        while True:
            if when("".join(self._printed[seen:])):
                seen = len(self._printed)
                await self._manager.interrupt_kernel()
            await asyncio.sleep(_POLL_S)

    async def _finished(self, sent: str) -> CellOutput:
        error = ""
        while True:
            try:
                message = await self._client.get_iopub_msg(timeout=_MESSAGE_S)
            except queue.Empty:
                assert await self._manager.is_alive(), "the kernel has ended"
                continue
            if message["parent_header"].get("msg_id") != sent:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    self._printed.append(content["text"])
                case "execute_result":
                    self._printed.append(content["data"]["text/plain"])
                case "error":
                    error = f"{content['ename']}: {content['evalue']}"
                case "status" if content["execution_state"] == "idle":
                    return CellOutput("".join(self._printed), error)


@contextmanager
def open_notebook(folder: Path, environment: Mapping[str, str]) -> Iterator[Notebook]:
    """Start a kernel in the folder, and end it after the block."""
    sockets = tempfile.mkdtemp(prefix="kernel-")  # a short path, as Unix sockets need it
    manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/socket")
    with asyncio.Runner() as runner:

        async def start() -> AsyncKernelClient:
            await manager.start_kernel(cwd=str(folder), env=dict(environment))
            client: AsyncKernelClient = manager.client()
            client.start_channels()
            await client.wait_for_ready(timeout=CELL_S_MAX)
            return client

        async def stop() -> None:
            await manager.shutdown_kernel(now=True)

        try:
            client = runner.run(start())
            yield Notebook(runner, manager, client)
            client.stop_channels()
        finally:
            runner.run(stop())
            shutil.rmtree(sockets, ignore_errors=True)
