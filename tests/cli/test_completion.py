"""Shell completion and the version, as shells and scripts ask for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

import tidegate

COMMAND = [sys.executable, "-m", "tidegate.cli.main"]


def said(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [*COMMAND, *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_of_each_shell_asks_tidegate(shell: str) -> None:
    script = said("completion", shell)
    assert "_TIDEGATE_COMPLETE" in script
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tidegate kafka top", "topics"),
        ("tidegate kafka topics cr", "create"),
        ("tidegate run --bou", "--bounded"),
    ],
)
def test_commands_and_options_are_completed(words: str, found: str) -> None:
    number = str(words.count(" "))
    answer = said(_TIDEGATE_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=number)
    assert found in answer.split()


def test_version_is_that_of_the_package() -> None:
    assert said("--version") == f"tidegate {tidegate.__version__}\n"
