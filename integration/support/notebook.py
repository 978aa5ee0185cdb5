"""A real Jupyter kernel for tests: runs cells as a notebook does, and interrupts them.

The kernel is a process of this environment. It ends with its owner.
"""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

CELL_S_MAX = 90.0
_MESSAGE_S = 1.0


@dataclass(frozen=True, slots=True)
class CellOutput:
    """What a cell has printed, and the error that has ended it, as `Name: text`."""

    text: str
    error: str


class Notebook:
    """A running kernel. One cell runs at a time."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self._manager, self._client = manager, client
        self._printed: list[str] = []

    def run(self, cell: str) -> str:
        """Run a cell that must not fail, and return what it has printed."""
        done = self.execute(cell)
        assert not done.error, done.error + done.text
        return done.text

    def execute(self, cell: str) -> CellOutput:
        """Run a cell to its end."""
        self._printed, error = [], ""
        sent = self._client.execute(cell, store_history=True, allow_stdin=False)
        deadline_s = time.monotonic() + CELL_S_MAX
        while time.monotonic() < deadline_s:
            try:
                message = self._client.get_iopub_msg(timeout=_MESSAGE_S)
            except queue.Empty:
                assert self._manager.is_alive(), "the kernel has ended"
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
        raise TimeoutError(f"the cell still runs after {CELL_S_MAX} s: {''.join(self._printed)}")

    def execute_and_interrupt(self, cell: str, *, when: Callable[[str], bool]) -> CellOutput:
        """Run a cell, and interrupt the kernel, as the stop button does, each time that `when`
        accepts what the cell has printed since the last interrupt.
        """
        over = threading.Event()
        self._printed = []

        def watch() -> None:
            seen = 0
            while not over.wait(0.05):
                if when("".join(self._printed[seen:])):
                    seen = len(self._printed)
                    self._manager.interrupt_kernel()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            return self.execute(cell)
        finally:
            over.set()
            thread.join()


@contextmanager
def open_notebook(folder: Path, environment: Mapping[str, str]) -> Iterator[Notebook]:
    """Start a kernel in the folder, and end it after the block."""
    sockets = tempfile.mkdtemp(prefix="kernel-")  # a short path, as Unix sockets need it
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{sockets}/socket")
    manager.start_kernel(cwd=str(folder), env=dict(environment))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=CELL_S_MAX)
        yield Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        shutil.rmtree(sockets, ignore_errors=True)
