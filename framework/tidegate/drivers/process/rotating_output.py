"""The output of a process: files of limited size that raise no error.

The standard error of every process of a cluster is its log. The standard output of a slot has what
user code prints. A job may run for months, and user code may print a line for each record. So a
full file is renamed to `NAME.1`, which replaces the one before, and a new file takes its place at
the same descriptor. Native code and processes that user code starts later write to the new file
too, because they share the descriptor.

Invariant: neither a `print` nor a log line raises an error of the disk. Output that the disk does
not take is dropped. The number of dropped bytes is written before the next output that the disk
takes.

This module does not limit what native code and other processes write between two writes of Python.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from tidegate.private_files import private_opener

if TYPE_CHECKING:
    from typing_extensions import Buffer


_STANDARD_OUTPUTS: Final = (1, 2)
"""Descriptors that can be one file: except in a slot, the log is both."""


def rotated_name(path: Path) -> Path:
    """Return the name that a full file gets."""
    return path.with_name(path.name + ".1")


def rotating_text(descriptor: int, path: Path, max_size: int) -> TextIO:
    """Return the text stream of a descriptor that is the file `path`. Each line is written at once,
    and a character that UTF-8 does not have is written as its escape.
    """
    raw = RotatingFile(descriptor, path, max_size)
    return _Output(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


class _Output(io.TextIOWrapper):
    """A standard output. User code that closes it does not close the log of the process."""

    def close(self) -> None:
        """Write what is buffered, and stay open."""
        if not self.closed:
            self.flush()


class RotatingFile(io.RawIOBase):
    """The bytes of a descriptor that is the file `path`, of at most `max_size` bytes. An earlier
    process may still write to the same file, and may rename it too.
    """

    def __init__(self, descriptor: int, path: Path, max_size: int) -> None:
        self._descriptor, self._path, self._max_size = descriptor, path, max_size
        self._dropped = 0
        """The bytes that the disk did not take since the last write that it took."""
        self._reason = ""
        self._line_is_open = False
        """Whether the last byte in the file does not end a line."""

    def fileno(self) -> int:
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        """Write a part of `data`, and return its length. Dropped data counts as written."""
        part = memoryview(data).cast("B")[: self._max_size]
        try:
            self._make_room(len(part))
            if self._dropped:
                self._write_all(self._note())
                self._dropped = 0
            written = os.write(self._descriptor, part)
        except OSError as error:
            self._dropped += len(part)
            self._reason = error.strerror or str(error)
            return len(part)
        self._line_is_open = part[written - 1] != ord("\n")
        return written

    def _make_room(self, length: int) -> None:
        status = os.fstat(self._descriptor)
        if not status.st_size or status.st_size + length <= self._max_size:
            return
        with contextlib.suppress(FileNotFoundError):  # a user has removed it
            if os.path.samestat(status, self._path.stat()):  # else another process has renamed it
                self._path.replace(rotated_name(self._path))
        open_at(self._descriptor, self._path)
        for standard in _STANDARD_OUTPUTS:
            if standard != self._descriptor and _is_open_as(status, standard):
                os.dup2(self._descriptor, standard)
        self._line_is_open = False

    def _note(self) -> bytes:
        start = "\n" if self._line_is_open else ""
        text = f"{start}[tidegate] {self._dropped} bytes of output are lost: {self._reason}.\n"
        return text.encode()

    def _write_all(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


def _is_open_as(status: os.stat_result, descriptor: int) -> bool:
    try:
        return os.path.samestat(status, os.fstat(descriptor))
    except OSError:  # the process has no such descriptor
        return False


def open_at(descriptor: int, path: Path) -> None:
    """Open a file for appending at the given descriptor. The owner alone can read the file."""
    file = private_opener(str(path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, descriptor)
    os.close(file)
