"""Ctrl-C before a command has started anything: exit code 130 and no text."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCK = """
import signal
{before}
from tidegate.terminal.interrupt import ExitOnInterrupt
with ExitOnInterrupt():
    signal.raise_signal(signal.SIGINT)
print("after", signal.getsignal(signal.SIGINT) is {handler})
"""


@pytest.mark.parametrize(
    ("before", "handler", "code", "said"),
    [
        ("", "signal.default_int_handler", 130, ""),
        ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "signal.SIG_IGN", 0, "after True\n"),
    ],
)
def test_ctrl_c_ends_the_process_at_once_unless_the_shell_ignores_it(
    before: str, handler: str, code: int, said: str
) -> None:
    script = BLOCK.format(before=before, handler=handler)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


def test_block_restores_the_handler_that_was_there_before() -> None:
    script = BLOCK.replace("signal.raise_signal(signal.SIGINT)", "pass").format(
        before="", handler="signal.default_int_handler"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "after True\n"


def test_entry_point_is_ready_before_it_imports_the_commands() -> None:
    script = """
import builtins, signal, sys
import tidegate.cli.entry as entry
load = builtins.__import__
def interrupting(name, *rest):
    if name == "tidegate.cli.main":
        signal.raise_signal(signal.SIGINT)
    return load(name, *rest)
builtins.__import__ = interrupting
entry.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "")
