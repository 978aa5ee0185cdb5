"""The session of `tidegate dev`: starts the pipeline, and starts it again when a file is saved.

A save is checked before the running job is touched. Code that cannot be built is shown, and the old
job continues. Code that does not fit the last checkpoint is explained, and the user may start
without the state. Otherwise the old job stops with a final checkpoint, and the new one continues
from it. The session ends only by the user: an error of the job waits for the next save.

One thread decides. Other threads only put events into its queue: the watch of the files, the lines
that the user types, and the ends of children.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from tidegate.cli.inspect.commands import REFUSED
from tidegate.cli.project.broker import DevBroker
from tidegate.cli.project.output import DevOutput, JsonOutput
from tidegate.cli.project.processes import RECORDS, Answer, DevChild, ask
from tidegate.cli.project.record_viewer import AS_JSON, end_positions
from tidegate.config_load import load
from tidegate.drivers.file_watch import wait_for_save
from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin
from tidegate.errors import ExternalError, UserError

T = TypeVar("T")

STOP_S: Final = 30.0
"""The time for a final checkpoint, in seconds. Afterwards the job is killed. It then continues from
the checkpoint before.
"""
HELP: Final = "Save a file to restart the job. Ctrl-C stops it."
DROP: Final = (
    "Change the code and save it, or type d and Enter to start without this state. The sources "
    "then begin where starting_offsets= says, so the input may be read again."
)
COMMANDS: Final = "Type r to restart, d to drop the state, or q to quit, and Enter."


@dataclass(frozen=True, slots=True, kw_only=True)
class DevOptions:
    """The pipeline, and the options that go to every command that the session runs."""

    reference: str
    words: Sequence[str]
    """Options of `run`, `check` and `diff`: the parameters, the settings and the name."""
    settings: dict[str, Any]
    """The settings in `words`, by dotted key, and their NAME=VALUE of parameters as `params`."""
    partitions: int
    drop_state: bool


class DevSession:
    """A session. `run` returns when the user ends it."""

    def __init__(
        self, folder: Path, options: DevOptions, broker: DevBroker, output: DevOutput
    ) -> None:
        self._folder, self._options, self._broker = folder, options, broker
        self._output = output
        # A signal handler puts into the queue, which is allowed for a SimpleQueue only.
        self._events: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._run: DevChild | None = None
        self._viewer: DevChild | None = None
        self._interrupts = 0
        self._starts = 0
        self._over = threading.Event()

    def run(self) -> None:
        """Run until Ctrl-C, SIGTERM or the command q."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupted)
        threads = [
            threading.Thread(target=self._watch_files, name="watch-files"),
            threading.Thread(target=self._read_commands, name="read-commands", daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            self._start()
            self._output.hint(HELP)
            if sys.stdin.isatty():
                self._output.hint(COMMANDS)
            while self._handle(*self._events.get()):
                continue
        finally:
            self._over.set()
            self._stop()
            threads[0].join()

    def _handle(self, event: str, about: object) -> bool:
        """Handle an event. Return False if the session ends."""
        match event, about:
            case ("interrupt", _) | ("typed", "q"):
                return False
            case ("saved", list(files)):
                self._output.event("file_saved", f"saved: {', '.join(files)}", files=files)
                self._start()
            case ("typed", "r"):
                self._start()
            case ("typed", "d"):
                self._start(drop_state=True)
            case ("typed", str(text)) if text:
                self._output.message(f"{text!r} is unknown. {COMMANDS}")
            case ("ended", int(status)):
                self._output.event(
                    "job_failed" if status else "job_ended",
                    f"The job ended with exit code {status}. Save a file to start it again.",
                    exit_code=status,
                )
            case _:
                pass
        return True

    # --- start and stop ---------------------------------------------------------------------

    def _start(self, *, drop_state: bool = False) -> None:
        """Start the job with the present code, if it can be built and fits the last checkpoint."""
        checked, compared = ask(
            ["check", self._options.reference, *self._words(), "--json"],
            ["diff", self._options.reference, *self._words()],
        )
        topics = self._checked_topics(checked)
        if topics is None:
            return
        drop_state = drop_state or (compared.code == REFUSED and self._options.drop_state)
        if compared.code and not drop_state:
            self._refuse("state", compared.out or compared.err, f"{DROP}\n")
            return
        if self._interrupts or not self._create(topics):
            return
        self._stop()
        self._view(topics)
        restore = ["--restore", "none"] if drop_state else []
        words = ["run", self._options.reference, *self._words(), *restore]
        output = self._output
        self._run = DevChild(
            [*words, "--json"] if output.as_json else words,
            self._broker.scratch,
            output.job_line,
            lambda status: self._events.put(("ended", status)),
            on_error_line=output.job_text if isinstance(output, JsonOutput) else None,
        )
        self._output.event(
            "job_restarted" if self._starts else "job_started",
            "started the job",
            with_state=not drop_state,
        )
        self._starts += 1

    def _checked_topics(self, checked: Answer) -> list[str] | None:
        """Return the topics of the pipeline. None if it cannot be built; the problems are shown."""
        try:
            result = json.loads(checked.out)
        except json.JSONDecodeError:
            self._refuse("code", checked.err or checked.out)
            return None
        for problem in result["problems"]:
            self._output.event("problem", f"{problem['about']}: {problem['text']}", **problem)
        if not result["accepted"]:
            self._refuse("code", "")
            return None
        return list(result["topics"])

    def _refuse(self, reason: str, text: str, hint: str = "") -> None:
        """Report that the present code is not started, and whether a job runs."""
        job_continues = self._run is not None and self._run.alive
        what_runs = (
            "The job continues with the code before this save."
            if job_continues
            else "The job is not started. Save a file to try again."
        )
        shown = f"{text}\n{hint}{what_runs}"
        self._output.event(
            "code_refused",
            shown.lstrip("\n"),
            reason=reason,
            text=text,
            job_continues=job_continues,
        )

    def _ask_kafka(self, question: Callable[[KafkaTopicAdmin], T]) -> T | None:
        """Return the answer of the brokers. Print the error and return None if it fails."""
        try:
            admin = KafkaTopicAdmin(self._client_settings())
            try:
                return question(admin)
            finally:
                admin.close()
        except (UserError, ExternalError) as error:
            self._output.message(str(error))
            return None

    def _create(self, topics: list[str]) -> bool:
        """Create the missing topics. Return False, and print the error, if that fails."""
        partitions = self._options.partitions
        made = self._ask_kafka(lambda admin: admin.create_missing(topics, partitions))
        if made is None:
            self._refuse("brokers", "")
        elif made:
            self._output.event("topics_created", f"created topics: {', '.join(made)}", topics=made)
        return made is not None

    def _view(self, topics: list[str]) -> None:
        """Show the records that are written from now on. The job is not started yet, so that its
        first results are shown too.
        """
        ends = self._ask_kafka(lambda admin: end_positions(admin, topics))
        if ends is None:
            return
        settings = {
            **self._options.settings,
            **self._broker.settings,
            "kafka.bootstrap_servers": self._broker.bootstrap,
        }
        words = [RECORDS, self._options.reference, json.dumps(settings), json.dumps(ends)]
        words += [AS_JSON] if self._output.as_json else []
        self._viewer = DevChild(words, None, self._output.record_line)

    def _client_settings(self) -> dict[str, str]:
        """Return the settings of a Kafka client for the session's brokers."""
        given = {key: value for key, value in self._options.settings.items() if key != "params"}
        config = load(
            folder=self._folder,
            environment=dict(os.environ),
            command_line={**given, "kafka.bootstrap_servers": self._broker.bootstrap},
        )
        return config.kafka.client_settings()

    def _stop(self) -> None:
        """Stop the job with a final checkpoint. A second Ctrl-C kills it."""
        if self._viewer is not None:
            self._viewer.stop(2.0, lambda: False)
        if self._run is not None:
            if self._run.alive:
                self._output.event("job_stopping", "stopping the job with a final checkpoint")
            at_start = self._interrupts
            self._run.stop(STOP_S, lambda: self._interrupts > at_start)
        self._run = self._viewer = None

    def _words(self) -> list[str]:
        given = {**self._broker.settings, "kafka.bootstrap_servers": self._broker.bootstrap}
        placed = [word for key, value in given.items() for word in ("-c", f"{key}={value}")]
        return [*self._options.words, *placed]

    # --- events -----------------------------------------------------------------------------

    def _interrupted(self, _signal: int, _frame: FrameType | None) -> None:
        self._interrupts += 1
        self._events.put(("interrupt", None))

    def _watch_files(self) -> None:
        while not self._over.is_set():
            try:
                saved = wait_for_save(self._folder, self._over)
            except FileNotFoundError:
                continue  # a folder was removed between the listing and the watch
            except OSError as error:  # for example, the system's limit of watches is reached
                self._output.message(
                    f"Saved files are not seen: {error}. Type r and Enter to restart the job."
                )
                return
            if saved:
                names = sorted(str(path.relative_to(self._folder)) for path in saved)
                self._events.put(("saved", names))

    def _read_commands(self) -> None:
        if sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
            return  # the shell would stop a background process that reads from the terminal
        for line in sys.stdin:
            self._events.put(("typed", line.strip().lower()))
