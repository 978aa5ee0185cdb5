"""The output of a slot: its files stay small, and a full disk raises no error in user code."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tidegate.drivers.process.rotating_output import open_at, rotated_name, rotating_text

MAX = 1000


@contextlib.contextmanager
def stream(path: Path, max_size: int = MAX) -> Iterator[TextIO]:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    open_at(descriptor, path)
    with rotating_text(descriptor, path, max_size) as text:
        yield text
    os.close(descriptor)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "subtask-0.out"


def test_files_stay_below_the_limit_and_have_the_newest_lines(path: Path) -> None:
    with stream(path) as output:
        for number in range(10_000):
            print("line", number, file=output)
    older = rotated_name(path)
    assert path.stat().st_size <= MAX
    assert older.stat().st_size <= MAX
    lines = (older.read_text() + path.read_text()).splitlines()
    assert lines == [f"line {number}" for number in range(10_000 - len(lines), 10_000)]
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.name for each in path.parent.iterdir()} == {path.name, older.name}


def test_one_long_line_does_not_make_a_larger_file(path: Path) -> None:
    with stream(path) as output:
        print("x" * 50_000 + "end", file=output)
    assert path.stat().st_size <= MAX
    assert rotated_name(path).stat().st_size <= MAX
    assert path.read_text().endswith("end\n")


def test_processes_that_user_code_starts_write_to_the_newest_file(path: Path) -> None:
    with stream(path) as output:
        print("a" * 990, file=output)
        print("of Python", file=output)
        subprocess.run(["echo", "of a process"], stdout=output, check=True)
    assert path.read_text() == "of Python\nof a process\n"


def test_slot_that_finds_its_file_renamed_leaves_the_older_file_alone(path: Path) -> None:
    with stream(path) as old, stream(path) as new:
        print("a" * 990, file=old)
        print("of the new slot", file=new)
        print("of the old slot", file=old)
    assert rotated_name(path).read_text() == "a" * 990 + "\n"
    assert path.read_text() == "of the new slot\nof the old slot\n"


def test_character_that_utf_8_does_not_have_raises_no_error(path: Path) -> None:
    with stream(path) as output:
        print("\ud800 \u00e4", file=output)
    assert path.read_text(encoding="utf-8") == "\\ud800 \u00e4\n"


def test_print_raises_no_error_on_a_full_disk_and_the_lost_bytes_are_counted(path: Path) -> None:
    path.symlink_to("/dev/full")
    with stream(path) as output:
        for _ in range(1000):
            print("lost", file=output)
        open_at(output.fileno(), path.with_name("disk with space"))
        print("kept", file=output)
    note, kept = path.with_name("disk with space").read_text().splitlines()
    assert note == "[tidegate] 5000 bytes of output are lost: No space left on device."
    assert kept == "kept"


def test_print_raises_no_error_if_the_next_file_cannot_be_made(path: Path) -> None:
    with stream(path) as output:
        print("a" * 999, file=output)
        path.unlink()
        path.mkdir()
        print("lost", file=output)
        path.rmdir()
        print("kept", file=output)
    assert path.read_text() == ("[tidegate] 5 bytes of output are lost: Is a directory.\nkept\n")


def test_close_by_user_code_keeps_the_output_open(path: Path) -> None:
    with stream(path) as output:
        output.write("one")
        output.close()
        print(" line", file=output)
    assert path.read_text() == "one line\n"
