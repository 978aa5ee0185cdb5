"""Parts of processes that need none: frames, arguments, the form of a log line."""

import contextlib
import errno
import io
import logging
import logging.config
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate.drivers import logs
from tidegate.drivers.process import fork_protocol, parent_watch
from tidegate.drivers.process.prestart import environment
from tidegate.errors import InternalError
from tidegate.ids import Attempt, JobName, LeaderEpoch
from tidegate.protocol.messages import StartSlot

START = StartSlot(
    epoch=LeaderEpoch(1),
    index=0,
    ordinal=0,
    job=JobName("a"),
    attempt=Attempt(1),
    jobmaster_address="here",
    working_folder="/work",
    settings={"text": "x" * 300_000, "nested": {"number": 1}},
)


PLAIN: Any = {
    "version": 1,
    "formatters": {"plain": {"format": "%(message)s"}},
    "handlers": {"err": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"level": "WARNING", "handlers": ["err"]},
}
FILE = """
[loggers]
keys=root
[handlers]
keys=err
[formatters]
keys=
[logger_root]
level=WARNING
handlers=err
[handler_err]
class=StreamHandler
args=()
"""

CONFIGURED: dict[str, Callable[[], object]] = {
    "dictConfig": lambda: logging.config.dictConfig(PLAIN),
    "dictConfig of tidegate": lambda: logging.config.dictConfig(
        {**PLAIN, "loggers": {"tidegate": {"level": "WARNING"}}}
    ),
    "dictConfig of a child": lambda: logging.config.dictConfig(
        {**PLAIN, "loggers": {"tidegate.slot": {"level": "WARNING"}}}
    ),
    "fileConfig": lambda: logging.config.fileConfig(io.StringIO(FILE)),
    "basicConfig": lambda: logging.basicConfig(force=True, level="ERROR"),
    "disable": lambda: logging.disable(logging.CRITICAL),
}
"""Calls with which user code configures logging, by name."""


def test_environment_prefers_the_malloc_arena_max_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert environment()["MALLOC_ARENA_MAX"] == "64"
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")
    assert environment()["MALLOC_ARENA_MAX"] == "2"


class TestFrames:
    def test_frames_arrive_unchanged_however_the_socket_splits_them(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            writer = threading.Thread(
                target=fork_protocol.send, args=(ours, fork_protocol.Fork(start=START))
            )
            writer.start()  # larger than the socket's buffer: it must be read meanwhile
            assert fork_protocol.receive_command(theirs) == fork_protocol.Fork(start=START)
            writer.join()
            notice = fork_protocol.Exited(index=3, pid=7, status=-9)
            fork_protocol.send(theirs, notice)
            assert fork_protocol.receive_notice(ours) == notice

    def test_receive_returns_none_if_the_peer_closed_within_a_frame(self) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            theirs.sendall(b"\0\0")  # killed in the middle of a frame
            theirs.close()
            assert fork_protocol.receive_command(ours) is None

    def test_frame_of_absurd_length_is_refused(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(b"\xff\xff\xff\xff")
            with pytest.raises(InternalError, match="4294967295 bytes"):
                fork_protocol.receive_command(ours)


def test_arguments_are_the_first_line_of_the_parent_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setattr(parent_watch, "PARENT_PIPE_FD", read)
    given = {"text": "two\nlines, ä", "number": 1}
    os.write(write, parent_watch.encode_arguments(given))
    assert parent_watch.read_arguments() == given
    os.close(write)
    os.close(read)


class TestLogs:
    @pytest.fixture(autouse=True)
    def restored(self) -> Iterator[None]:
        root, own = logging.getLogger(), logging.getLogger(logs.OWN)
        handlers, level, disabled = list(root.handlers), root.level, root.manager.disable
        loggers = [
            one for one in root.manager.loggerDict.values() if isinstance(one, logging.Logger)
        ]
        enabled = [one for one in loggers if not one.disabled]
        levels = {one.name: one.level for one in loggers}
        yield
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)
        root.manager.loggerClass = None
        for logger in root.manager.loggerDict.values():
            if isinstance(logger, logs.OwnLogger):
                restored: Any = logger
                restored.__class__ = logging.Logger
                logger.disabled = False
            if isinstance(logger, logging.Logger):
                logger.setLevel(levels.get(logger.name, logging.NOTSET))
        for logger in enabled:
            logger.disabled = False
        own.propagate = True

    def test_log_line_contains_role_job_logger_extra_fields_and_message(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.set_up_logging("info", role="slot", job="a")
        log = logging.getLogger("x")
        log.info("two words", extra={"epoch": 3, "why": "a b"})
        log.debug("not shown")
        (line,) = capsys.readouterr().err.splitlines()
        assert line.split(" ", 1)[1] == (
            'level=info role=slot job=a logger=x epoch=3 why="a b" message="two words"'
        )

    def test_log_of_an_exception_contains_its_traceback_once(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.set_up_logging("warning", role="slot")
        try:
            raise ValueError('a "quoted" reason')  # noqa: TRY301  # it is the traceback's
        except ValueError:
            logging.getLogger("x").exception("failed\nbadly")
        text = capsys.readouterr().err
        assert text.count('message="failed\\nbadly"') == 1
        assert text.count('ValueError: a "quoted" reason') == 1

    @pytest.mark.parametrize("name", CONFIGURED)
    def test_user_code_that_configures_logging_does_not_silence_the_log(
        self, name: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.set_up_logging("info", role="slot")
        own = logging.getLogger("tidegate.slot.main")
        CONFIGURED[name]()
        own.error("the attempt failed")
        logging.getLogger(f"a user with {name}").error("theirs")
        lines = capsys.readouterr().err.splitlines()
        assert sum("the attempt failed" in line for line in lines) == 1, lines
        if name != "disable":
            assert sum("theirs" in line for line in lines) == 1, lines

    def test_user_code_can_set_the_level_and_add_a_handler(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logs.set_up_logging("info", role="slot")
        kept = io.StringIO()
        top, own = logging.getLogger("tidegate"), logging.getLogger("tidegate.slot.main")
        handler = logging.StreamHandler(kept)
        top.addHandler(handler)
        top.setLevel("ERROR")
        own.info("not wanted")
        own.error("wanted")
        top.removeHandler(handler)
        assert kept.getvalue() == "wanted\n"
        (line,) = capsys.readouterr().err.splitlines()
        assert line.endswith("message=wanted")

    def test_log_stream_on_a_full_disk_raises_no_error_and_counts_lost_lines(
        self, tmp_path: Path
    ) -> None:
        class Disk(io.StringIO):
            full = True

            def write(self, text: str) -> int:
                if self.full:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return super().write(text)

        disk = Disk()
        stream = logs.BestEffortStream(disk)
        stream.write("one\n")
        stream.write("two\n")
        disk.full = False
        stream.write("three\n")
        stream.write("four\n")
        said, *others = disk.getvalue().splitlines()
        assert 'level=warning message="2 lines lost or late: No space left on device"' in said
        assert others == ["three", "four"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
    def test_logging_does_not_fail_if_stderr_is_full(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with open("/dev/full", "w", buffering=1, encoding="utf-8") as full:  # noqa: PTH123
            monkeypatch.setattr(sys, "stderr", full)
            logs.set_up_logging("info")
            logging.getLogger("x").info("into the void")
            monkeypatch.undo()
            with contextlib.suppress(OSError):  # what is buffered still has nowhere to go
                full.close()
