"""The stop of a local run: by Ctrl-C, by SIGTERM, or by `tidegate stop` from another terminal.

The first request stops the job with a final checkpoint. A second Ctrl-C exits at once. The stop is
sent between two reports, not by the signal handler, which may interrupt any code. It is sent again
to each new JobManager, because a JobManager keeps it in memory only. Python gives signals to the
main thread only, so a run in another thread has no Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from tidegate.errors import RefusedError, RpcError
from tidegate.protocol.job_state import ENDED
from tidegate.terminal.display import Display, print_status

if TYPE_CHECKING:
    from tidegate.controlplane.client.client import Client
    from tidegate.ids import JobName
    from tidegate.protocol.reports import JobReport


TOLD_AFTER_S: Final = 5.0
"""The time in seconds after which the command says what it waits for."""


class RunInterruptedError(Exception):
    """The run ends at once, without the end of the job."""


class SecondInterruptError(RunInterruptedError):
    """The second Ctrl-C."""


class StoppedBeforeStartError(RunInterruptedError):
    """A stop was requested before the job was submitted."""


class StopRequest(NamedTuple):
    """The way in which the job shall end."""

    final_checkpoint: bool = True
    drain: bool = False


class RunStop:
    """The request to stop a run, and its delivery. Inside its block it handles the signals.

    Other threads may call `request`. The newest request counts.
    """

    def __init__(self, job: JobName, display: Display) -> None:
        self._job, self._display = job, display
        self._client: Client | None = None
        self._restarts: Callable[[], int] = lambda: 0
        self._interrupted = False
        self._request: StopRequest | None = None
        self._delivered: tuple[StopRequest, int] | None = None
        """The last request that was delivered, with the number of JobManager restarts then."""
        self._before: dict[signal.Signals, Any] = {}
        self.latest: JobReport | None = None
        """The last report of the job."""
        self._is_submitting = False

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for name in (signal.SIGINT, signal.SIGTERM):
                self._before[name] = signal.signal(name, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name, handler in self._before.items():
            signal.signal(name, handler)

    @property
    def is_requested(self) -> bool:
        """Whether the run shall stop."""
        return self._request is not None

    def attach(self, client: Client, restarts: Callable[[], int]) -> None:
        """Deliver stops through this client. `restarts` counts the restarts of the JobManager."""
        self._client, self._restarts = client, restarts

    @contextmanager
    def submitting(self, storage: str) -> Iterator[None]:
        """Submit the job in this block. If it takes long, say that the job is not stored yet. A
        Ctrl-C ends the block with StoppedBeforeStartError, because nothing runs yet.
        """
        timer = threading.Timer(TOLD_AFTER_S, self._display.waiting_to_start, (storage,))
        timer.daemon = True
        timer.start()
        self._is_submitting = True
        try:
            yield
        finally:
            self._is_submitting = False
            timer.cancel()

    def request(self, stop: StopRequest) -> None:
        """Stop the job soon."""
        self._request = stop
        self._display.stopping(final_checkpoint=stop.final_checkpoint)

    def reported(self, report: JobReport) -> None:
        """Show a report. Send a requested stop to a JobManager that does not have it yet."""
        self.latest = report
        self._display.show(report)
        asked, restarts = self._request, self._restarts()
        if asked is None or self._client is None or report.state in ENDED:
            return
        if self._delivered == (asked, restarts):
            return
        try:
            self._client.stop(self._job, final_checkpoint=asked.final_checkpoint, drain=asked.drain)
            self._delivered = asked, restarts
        except RefusedError:
            # The job has ended meanwhile, and the next report says so.
            self._delivered = asked, restarts
        except RpcError as error:
            print_status(f"{self._job}: the stop could not be delivered yet: {error}")

    def _on_signal(self, _signal: int, _frame: object) -> None:
        if self._interrupted:
            raise SecondInterruptError
        if self._is_submitting:
            raise StoppedBeforeStartError
        self._interrupted = True
        self.request(self._request or StopRequest())  # a cancel stays one
