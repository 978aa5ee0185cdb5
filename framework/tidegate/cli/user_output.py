"""What user code prints during a local run, copied to the terminal.

Each slot process writes its standard output to `subtask-N.out` in the job's log folder, as a
TaskManager of Flink writes its `.out` file. A thread reads what is added to these files, and prints
each line with the number of its subtask. The files stay, with everything that was printed.

Invariant: a line is printed whole, after the mark of its subtask. Lines of earlier runs are not
printed again.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

POLL_S: Final = 0.1
CHUNK_BYTES: Final = 1 << 20
"""The most that is read of a file at a time, so that a subtask that prints much delays no other."""
LINE_BYTES_MAX: Final = 1 << 16
"""The longest text without an end of line that is kept until its end comes."""


class UserOutput:
    """The copy of the subtasks' output, inside its block. The end of the block prints the rest."""

    def __init__(self, folder: Path, *, as_json: bool) -> None:
        """`folder` has the logs of the job. With `as_json` standard output belongs to the JSON
        lines, so the text goes to standard error.
        """
        self._folder = folder
        # A live display replaces the streams of a terminal, so a terminal is looked up each time.
        self._stderr = as_json
        self._file: TextIO | None = None if as_json or sys.stdout.isatty() else sys.stdout
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="user-output", daemon=True)

    def __enter__(self) -> Self:
        self._offsets = {path: path.stat().st_size for path in self._files()}
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.drain()

    def drain(self) -> None:
        """Print everything that the subtasks have written, also lines without an end."""
        while self._copy():
            continue
        with self._lock:
            for path, rest in self._partial.items():
                self._print(path, [rest] if rest else [])
            self._partial.clear()

    def _run(self) -> None:
        while not self._ended.wait(POLL_S):
            self._copy()

    def _copy(self) -> bool:
        """Print the new lines of all files. Return whether a file may have more."""
        with self._lock:
            more = [self._copy_file(path) for path in self._files()]
        return any(more)

    def _copy_file(self, path: Path) -> bool:
        offset = self._offsets.get(path, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(CHUNK_BYTES)
        except OSError:  # removed meanwhile, by a user who cleans up
            return False
        if not data:
            return False
        self._offsets[path] = offset + len(data)
        *lines, rest = (self._partial.get(path, b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        self._partial[path] = rest
        self._print(path, lines)
        return len(data) == CHUNK_BYTES

    def _print(self, path: Path, lines: list[bytes]) -> None:
        subtask = path.stem.rpartition("-")[2]
        text = "".join(
            f"[subtask {subtask}] {line.decode(errors='backslashreplace')}\n" for line in lines
        )
        stream = self._file or (sys.stderr if self._stderr else sys.stdout)
        encoding = stream.encoding or "utf-8"  # a text in memory has no encoding
        try:
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except OSError:
            self._ended.set()  # the reader of the output has ended; the job continues

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("subtask-*.out"))
