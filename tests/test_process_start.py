"""The first calls of a process: warnings as exceptions, closed streams, and an ASCII terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

START = """
from tidegate.process_start import complete_standard_streams, ignore_library_warnings
complete_standard_streams()
ignore_library_warnings()
"""


def run(
    code: str, shell: str = "", *, start: str = START, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, behind redirections of a shell."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {shell}', sys.executable, start + code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_warnings_of_libraries_are_no_exceptions_and_those_of_users_are() -> None:
    code = "import kafka.admin, warnings\nprint('imported')\nwarnings.warn('of the user')"
    found = run(code, PYTHONWARNINGS="error")
    assert found.stdout == "imported\n", found.stderr
    assert found.stderr.endswith("UserWarning: of the user\n")


@pytest.mark.parametrize("text", ["ä→", "😀", "half \ud800"])
def test_characters_that_a_stream_does_not_have_are_shown_as_escapes_of_json(text: str) -> None:
    code = f"print({text!a})\nimport sys\nprint({text!a}, file=sys.stderr)"
    found = run(code, PYTHONIOENCODING="ascii")
    assert found.stdout == found.stderr == json.dumps(text)[1:-1] + "\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_to_the_null_device(closed: str) -> None:
    code = """
import os, sys, tempfile
with tempfile.TemporaryFile() as file:
    for stream in (sys.stdout, sys.stderr):
        stream.write("text")
        stream.flush()
    assert file.fileno() > 2
    assert os.fstat(file.fileno()).st_size == 0
    assert sys.stdin.read() == ""
"""
    found = run(code, f"{closed}" if "<" in closed else f"{closed} </dev/null")
    assert found.returncode == 0, found.stderr


def test_command_line_begins_with_both() -> None:
    found = run(
        "import sys; sys.argv = ['tidegate', 'check', '\\xe4.py']\n"
        "from tidegate.cli.entry import main\n"
        "try: main()\n"
        "except SystemExit: import kafka.admin",  # it warns
        start="",
        PYTHONIOENCODING="ascii",
        PYTHONWARNINGS="error",
    )
    assert "\\u00e4.py does not exist" in found.stdout, found.stderr
    assert found.stderr == ""
