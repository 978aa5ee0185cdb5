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
import re
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from tidegate.cli.dev_broker import DevBroker
from tidegate.cli.dev_processes import RECORDS, Answer, DevChild, ask
from tidegate.cli.diff import REFUSED
from tidegate.cli.record_viewer import end_positions
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

    def __init__(self, folder: Path, options: DevOptions, broker: DevBroker) -> None:
        self._folder, self._options, self._broker = folder, options, broker
        # A signal handler puts into the queue, which is allowed for a SimpleQueue only.
        self._events: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._run: DevChild | None = None
        self._viewer: DevChild | None = None
        self._interrupts = 0
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
            say(HELP)
            if sys.stdin.isatty():
                say(COMMANDS)
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
            case ("saved", str(names)):
                say(f"saved: {names}")
                self._start()
            case ("typed", "r"):
                self._start()
            case ("typed", "d"):
                self._start(drop_state=True)
            case ("typed", str(text)) if text:
                say(f"{text!r} is unknown. {COMMANDS}")
            case ("ended", int(status)):
                say(f"The job ended with exit code {status}. Save a file to start it again.")
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
            self._explain(compared)
            return
        if self._interrupts or not self._create(topics):
            return
        self._stop()
        self._view(topics)
        restore = ["--restore", "none"] if drop_state else []
        words = [self._options.reference, *self._words(), *restore]
        self._run = DevChild(
            ["run", *words],
            self._broker.scratch,
            StatusLines(say).line,
            lambda status: self._events.put(("ended", status)),
        )
        say("started the job")

    def _checked_topics(self, checked: Answer) -> list[str] | None:
        """Return the topics of the pipeline. None if it cannot be built; the problems are shown."""
        try:
            result = json.loads(checked.out)
        except json.JSONDecodeError:
            say(checked.err or checked.out)
            self._say_what_continues()
            return None
        for problem in result["problems"]:
            say(f"{problem['about']}: {problem['text']}")
        if not result["accepted"]:
            self._say_what_continues()
            return None
        return list(result["topics"])

    def _explain(self, compared: Answer) -> None:
        say(compared.out or compared.err)
        say(DROP)
        self._say_what_continues()

    def _say_what_continues(self) -> None:
        if self._run is not None and self._run.alive:
            say("The job continues with the code before this save.")
        else:
            say("The job is not started. Save a file to try again.")

    def _ask_kafka(self, question: Callable[[KafkaTopicAdmin], T]) -> T | None:
        """Return the answer of the brokers. Print the error and return None if it fails."""
        try:
            admin = KafkaTopicAdmin(self._client_settings())
            try:
                return question(admin)
            finally:
                admin.close()
        except (UserError, ExternalError) as error:
            say(str(error))
            return None

    def _create(self, topics: list[str]) -> bool:
        """Create the missing topics. Return False, and print the error, if that fails."""
        partitions = self._options.partitions
        made = self._ask_kafka(lambda admin: admin.create_missing(topics, partitions))
        if made is None:
            self._say_what_continues()
        elif made:
            say(f"created topics: {', '.join(made)}")
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
        self._viewer = DevChild(words, None, show)

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
                say("stopping the job with a final checkpoint")
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
                say(f"Saved files are not seen: {error}. Type r and Enter to restart the job.")
                return
            if saved:
                names = sorted(str(path.relative_to(self._folder)) for path in saved)
                self._events.put(("saved", ", ".join(names)))

    def _read_commands(self) -> None:
        if sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
            return  # the shell would stop a background process that reads from the terminal
        for line in sys.stdin:
            self._events.put(("typed", line.strip().lower()))


class StatusLines:
    """The status lines of a run, without those that only repeat the line before. While no record
    arrives, a run reports only new checkpoints.
    """

    def __init__(self, show_line: Callable[[str], None]) -> None:
        self._show, self._before = show_line, ""

    def line(self, text: str) -> None:
        """Show a line, unless it differs from the one before only by rates and the checkpoint."""
        told = re.sub(r" \([\d,]+/s\)|, checkpoint [^;]*", "", text)
        if told != self._before:
            self._show(text)
        self._before = told


def say(text: str) -> None:
    """Print lines about the session on stderr."""
    for line in text.splitlines():
        print(f"dev: {line}", file=sys.stderr, flush=True)


def show(line: str) -> None:
    """Print a line of the viewer on stdout."""
    print(line, flush=True)
