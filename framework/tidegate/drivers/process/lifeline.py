"""How a process ends with its parent, however the parent ended.

Every process of a cluster has a pipe as its standard input, whose other end only its parent holds.
The parent writes one line into it, the arguments (they hold secrets, and a command line can be read
by anybody), and nothing ever after; so the end of the file means that the parent is gone, and the
operating system sends it also for a parent that was killed. Slots inherit the pipe from the zygote,
and with it the TaskManager's life.

What is not done: asking the kernel for a signal at the parent's death (Linux sends it when the
*thread* that forked ends, and a slot's parent is the zygote). A process whose threads are all stuck
in native code that holds the interpreter lock ends only when that returns; heartbeats see to the
rest.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from typing import Any, NoReturn

from tidegate.errors import check

LIFELINE_FD = 0
"""Standard input: inherited by definition, and no library uses it."""

ORPHANED = 72
"""Exit status of a process whose parent is gone; nobody is left to see it but the logs of a
system."""

_CHUNK = 1 << 16


def encode_arguments(arguments: Mapping[str, object]) -> bytes:
    """The line that a parent writes."""
    return json.dumps(arguments, separators=(",", ":")).encode() + b"\n"


def read_arguments() -> dict[str, Any]:
    """Read the parent's line; the lifeline is what remains. Exits if the parent is gone already."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = os.read(LIFELINE_FD, _CHUNK)
        if not chunk:
            os._exit(ORPHANED)
        line += chunk
    arguments = json.loads(line)
    check(isinstance(arguments, dict), "The arguments of a process are one JSON object.")
    return dict(arguments)


def hold_lifeline() -> None:
    """Start the thread that ends this process with its parent. Not in the zygote: threads forbid
    fork.
    """
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> NoReturn:
    # No cleaning up: whoever is left without its parent must not get a chance to hang in an exit
    # handler, and everything durable is written so that it can be left at any moment.
    while os.read(LIFELINE_FD, _CHUNK):
        continue
    os._exit(ORPHANED)
