"""What user code prints during a local run, copied to the terminal.

Each slot process writes its standard output to `subtask-N.out` in the job's log folder, as a
TaskManager of Flink writes its `.out` file. A thread reads what is added to these files, and prints
each line with the number of its subtask. A full file is renamed
(`drivers/process/rotating_output.py`), so the thread keeps each file open and reads it to its end
before it opens the next.

Invariant: a line is printed whole, after the mark of its subtask. Lines of earlier runs are not
printed again. If a subtask prints faster than the terminal shows, a line says that text is missing.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Self, TextIO

from tidegate.drivers.process.rotating_output import rotated_name

POLL_S: Final = 0.1
CHUNK_BYTES: Final = 1 << 20
"""The most that is read of a file at a time, so that a subtask that prints much delays no other."""
LINE_BYTES_MAX: Final = 1 << 16
"""The longest text without an end of line that is kept until its end comes."""
MISSING: Final = b"... (text is missing: the subtask prints faster than this terminal shows)"


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
        self._open: dict[Path, BinaryIO] = {}
        self._partial: dict[Path, bytes] = {}
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="user-output", daemon=True)

    def __enter__(self) -> Self:
        for path in self._files():
            if file := self._opened(path):
                file.seek(0, os.SEEK_END)
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
        for file in self._open.values():
            file.close()

    def drain(self) -> None:
        """Print everything that the subtasks have written, also lines without an end."""
        while self._copy():
            continue
        with self._lock:
            for path, rest in self._partial.items():
                self._print(path, [rest] if rest else [])
            self._partial.clear()

    def _run(self) -> None:
        more = False
        while not self._ended.wait(0 if more else POLL_S):
            more = self._copy()

    def _copy(self) -> bool:
        """Print the new lines of all files. Return whether a file may have more."""
        with self._lock:
            more = [self._copy_file(path) for path in self._files()]
        return any(more)

    def _copy_file(self, path: Path) -> bool:
        file = self._opened(path)
        if file is None:
            return False
        data = file.read(CHUNK_BYTES)
        if not data:
            if not _is_other(path, file):
                return False
            data = file.read(CHUNK_BYTES)  # it was written before the file was renamed
            if not data:
                self._leave(path, file)
                return True
        *lines, rest = (self._partial.get(path, b"") + data).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            lines, rest = [*lines, rest], b""
        self._partial[path] = rest
        self._print(path, lines)
        return len(data) == CHUNK_BYTES or _is_other(path, file)

    def _opened(self, path: Path) -> BinaryIO | None:
        if path not in self._open:
            try:
                self._open[path] = path.open("rb")
            except OSError:  # removed meanwhile, by a user who cleans up
                return None
        return self._open[path]

    def _leave(self, path: Path, file: BinaryIO) -> None:
        """Close a file that was read to its end and that a newer one has replaced."""
        if _is_other(rotated_name(path), file):
            rest = self._partial.pop(path, b"")
            self._print(path, [rest, MISSING] if rest else [MISSING])
        del self._open[path]
        file.close()

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
        """Return the files that can be read to an end: a link may lead to a device."""
        return sorted(path for path in self._folder.glob("subtask-*.out") if path.is_file())


def _is_other(path: Path, file: BinaryIO) -> bool:
    """Return whether another file than the given one has this name."""
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
