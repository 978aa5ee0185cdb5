"""What user code prints: whole lines, each with its subtask, and each once."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest

from tidegate.cli.run.user_output import UserOutput
from tidegate.drivers.process.rotating_output import rotating_text


def append(folder: Path, subtask: int, text: str) -> None:
    with (folder / f"subtask-{subtask}.out").open("a", encoding="utf-8") as file:
        file.write(text)


def test_lines_of_this_run_are_printed_with_their_subtask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path, 0, "of an earlier run\n")
    with UserOutput(tmp_path, as_json=False) as output:
        append(tmp_path, 0, "one\ntwo")
        append(tmp_path, 12, "other\n")
        output.drain()
        append(tmp_path, 0, "last\n")
    shown = capsys.readouterr()
    assert shown.out == "[subtask 0] one\n[subtask 12] other\n[subtask 0] two\n[subtask 0] last\n"
    assert shown.err == ""


def test_line_that_is_written_in_parts_is_printed_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with UserOutput(tmp_path, as_json=False) as output:
        append(tmp_path, 1, "one ")
        output._copy()
        append(tmp_path, 1, "line\n")
        output._copy()
    assert capsys.readouterr().out == "[subtask 1] one line\n"


def test_text_that_the_terminal_cannot_show_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with UserOutput(tmp_path, as_json=False):
        append(tmp_path, 0, "caf\u00e9\n")
    assert shown.getvalue() == b"[subtask 0] caf\\xe9\n"


def test_text_of_a_json_run_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with UserOutput(tmp_path, as_json=True):
        append(tmp_path, 0, "one\n")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "[subtask 0] one\n")


def test_lines_are_printed_while_the_run_lasts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with UserOutput(tmp_path, as_json=False):
        append(tmp_path, 0, "now\n")
        shown, end_s = "", time.monotonic() + 10
        while not shown and time.monotonic() < end_s:
            time.sleep(0.02)
            shown = capsys.readouterr().out
        assert shown == "[subtask 0] now\n"


def write_in_full_files(folder: Path, lines: int) -> None:
    path = folder / "subtask-0.out"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with rotating_text(descriptor, path, 100) as output:
        for number in range(lines):
            print(f"line {number}", file=output)
    os.close(descriptor)


def test_text_that_is_in_a_renamed_file_by_now_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with UserOutput(tmp_path, as_json=False) as output:
        write_in_full_files(tmp_path, 10)
        output._copy()
        write_in_full_files(tmp_path, 10)
    numbers = [*range(10), *range(10)]
    assert capsys.readouterr().out == "".join(f"[subtask 0] line {each}\n" for each in numbers)
    assert {path.name for path in tmp_path.iterdir()} == {"subtask-0.out", "subtask-0.out.1"}


def test_line_says_where_text_is_missing_because_two_files_were_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with UserOutput(tmp_path, as_json=False) as output:
        write_in_full_files(tmp_path, 1)
        output._copy()
        with output._lock:  # the thread of the output pauses
            write_in_full_files(tmp_path, 100)
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "[subtask 0] line 0"
    assert sum("text is missing" in line for line in shown) == 1
    assert shown[-1] == "[subtask 0] line 99"
