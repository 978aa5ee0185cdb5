"""Follows a page as a reader does: saves its files, and types its commands in one folder.

`integration/website/blocks.py` has the meaning of the comments above a block. Each block is one
shell. The environment and the folder of one shell are those of the next. Commands in the background
stand for a second terminal: they get SIGINT at `stop`, as from Ctrl-C, and at the end of the page.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from integration.support.running import ROOT
from integration.website.blocks import SHELL, Block, blocks_of

COMMAND_S_MAX = 120.0
BACKGROUND_S_MAX = 90.0
POLL_S = 0.1


class PageError(AssertionError):
    """A page is wrong. The message has the page, the line and what the command printed."""


class Reader:
    """One reader of some pages, with a folder of its own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._state = folder.with_name(f"{folder.name}.environment")
        path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, **environment}
        self._background: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        self._printed = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _where: TracebackType | None,
    ) -> None:
        self._stop(check=False)

    def follow(self, page: Path) -> int:
        """Do what a page says, and return the number of blocks that ran."""
        if self._state.exists():  # a page begins in the folder, whatever the last one has entered
            self.type(f"cd '{self.folder}'")
        done = 0
        for block in blocks_of(page.relative_to(ROOT), page.read_text(encoding="utf-8")):
            if "stop" in block.directives:
                self._stop()
            if block.title:
                (self.folder / block.title).write_text(block.code, encoding="utf-8")
            elif "output" in block.directives:
                self.compare_text(block.code, block.place)
            elif block.language not in SHELL or not block.is_run:
                continue
            elif "background" in block.directives:
                self._start(block)
                done += 1
            else:
                exit_code = int(block.directives.get("exit code", "0"))
                self.type(block.code, block.place, exit_code=exit_code)
                done += 1
        self._stop()
        return done

    def save_files(self, page: Path) -> None:
        """Save the files of a page, and type nothing."""
        for block in blocks_of(page.relative_to(ROOT), page.read_text(encoding="utf-8")):
            if block.title:
                (self.folder / block.title).write_text(block.code, encoding="utf-8")

    def type(self, code: str, place: str = "typed", *, exit_code: int = 0) -> None:
        """Run commands in one shell, and wait for their end."""
        shell = self._shell(code)
        try:
            printed, _ = shell.communicate(timeout=COMMAND_S_MAX)
        except subprocess.TimeoutExpired as error:
            _kill(shell)
            raise PageError(f"{place}: no end after {COMMAND_S_MAX:g} s") from error
        self._printed = printed.decode()
        if shell.returncode != exit_code:
            raise PageError(
                f"{place}: exit code {shell.returncode}, not {exit_code}:\n{self._printed}"
            )

    def compare_text(self, text: str, place: str = "compared") -> None:
        """Check that each of these lines is a part of a printed line, in this order."""
        left = iter(self._printed.splitlines())
        for line in text.splitlines():
            if not any(line in each for each in left):
                raise PageError(f"{place}: {line!r} is not in:\n{self._printed}")

    def _start(self, block: Block) -> None:
        log = self.folder.with_name(f"{self.folder.name}.terminal-{block.line}.log")
        shell = self._shell(f"exec {block.code}", log)
        self._background.append((block, shell, log))
        found = re.match(r"until: (.+)", block.directives["background"])
        end_s = time.monotonic() + BACKGROUND_S_MAX
        while found and found[1] not in log.read_text(errors="replace"):
            if shell.poll() is not None or time.monotonic() > end_s:
                raise PageError(
                    f"{block.place}: {found[1]!r} was not printed:\n{log.read_text()[-3000:]}"
                )
            time.sleep(POLL_S)

    def _shell(self, code: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        """Start a shell with the environment and folder of the last one, and keep its own."""
        before = f". {self._state}" if self._state.exists() else ":"
        keep = f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} >{self._state}"
        after = "" if log else f"\n{keep}"
        script = f"set -eu\n{before}\n{code}{after}\n"
        with log.open("wb") if log else nullcontext(subprocess.PIPE) as output:
            return subprocess.Popen(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _stop(self, *, check: bool = True) -> None:
        """Send Ctrl-C to the commands in the background, the newest first."""
        for block, shell, log in reversed(self._background):
            if shell.poll() is None:
                os.killpg(shell.pid, signal.SIGINT)
            try:
                code = shell.wait(timeout=BACKGROUND_S_MAX)
            except subprocess.TimeoutExpired:
                _kill(shell)
                code = -signal.SIGKILL
            if check and code not in {0, int(block.directives.get("exit code", "0"))}:
                raise PageError(f"{block.place}: exit code {code}:\n{log.read_text()[-3000:]}")
        self._background.clear()


def _kill(shell: subprocess.Popen[bytes]) -> None:
    os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
