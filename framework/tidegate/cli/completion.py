"""`tidegate completion`: prints the script that completes commands and options in a shell.

typer generates the script. At each TAB the shell runs `tidegate` with a variable in the
environment, and typer answers from the commands and options themselves. Nothing is installed: the
user decides where the script goes.
"""

from __future__ import annotations

import enum
import os
from typing import Annotated

import typer

PROGRAM = "tidegate"
VARIABLE = f"_{PROGRAM.upper()}_COMPLETE"
"""The environment variable with which a shell asks for completions."""


class Shell(enum.StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.")],
) -> None:
    """Print the completion script of a shell.

    bash: add the line `eval "$(tidegate completion bash)"` to ~/.bashrc. zsh: add the line
    `eval "$(tidegate completion zsh)"` to ~/.zshrc, after compinit. fish: write the output to
    ~/.config/fish/completions/tidegate.fish.

    Example: tidegate completion bash > ~/.local/share/bash-completion/completions/tidegate
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=str(shell)))


def enable_completion() -> None:
    """Let typer answer a shell that asks for completions. Without such a shell, do nothing."""
    if VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()
