"""The brokers of `tidegate dev`: those of the settings, that of `tidegate kafka up`, or its own.

A broker of its own has an empty scratch folder, in which the checkpoints and the state of the job
are too. They belong to the broker's topics, so all of them are removed together. On Linux the
broker dies with this process, also if this process is killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tidegate.cli.kafka.commands import DEFAULT_VERSION
from tidegate.cli.kafka.commands import FOLDER as PERMANENT
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import RefusedError
from tidegate.private_files import make_private_folder
from tidegate.terminal.live_line import seldom

SCRATCH: Final = Path(".tidegate") / "dev"
LOCK: Final = Path(".tidegate") / "dev.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class DevBroker:
    """The brokers that a session uses."""

    bootstrap: str
    origin: str
    """Where they come from, as text."""
    scratch: Path | None = None
    """The folder with all data of the session; None if the brokers are not its own."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings that place the data of the job into the scratch folder, by dotted key."""


@contextmanager
def dev_broker(
    folder: Path, servers: str | None, say: Callable[[str], None], *, keep: bool
) -> Iterator[DevBroker]:
    """Yield the brokers of a session. At the end, stop a broker that was started here and remove
    its data, unless `keep` is set. RefusedError if another session runs in this folder.

    `servers` are those that the configuration names, None if it names none.
    """
    with _locked(folder):
        if servers is not None:
            yield DevBroker(bootstrap=servers, origin="kafka.bootstrap_servers")
            return
        running = EmbeddedKafka.attach(folder / PERMANENT / DEFAULT_VERSION)
        if running is not None:
            yield DevBroker(bootstrap=running.bootstrap, origin="tidegate kafka up")
            return
        scratch = folder / SCRATCH
        if not keep:
            shutil.rmtree(scratch, ignore_errors=True)  # of a session that was killed
        make_private_folder(scratch)
        say("starting a Kafka broker")
        try:
            directory = scratch / "kafka"
            with EmbeddedKafka.start(
                DEFAULT_VERSION, directory=directory, owned=True, report=seldom(say)
            ) as kafka:
                yield DevBroker(
                    bootstrap=kafka.bootstrap,
                    origin="a broker of this session",
                    scratch=scratch,
                    settings={
                        "checkpoint.dir": str(SCRATCH / "checkpoints"),
                        "state.local_dir": str(SCRATCH / "state"),
                        "logs.dir": str(SCRATCH / "logs"),
                    },
                )
        finally:
            if not keep:
                shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    path = folder / LOCK
    make_private_folder(path.parent)
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text(encoding="utf-8").strip() or "unknown"
            raise RefusedError(
                f"Process {holder} already runs tidegate dev in this folder. Stop it first."
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
