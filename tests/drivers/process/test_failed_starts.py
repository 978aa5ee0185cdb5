"""Starts that fail halfway leave no socket and no folder behind."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tidegate import bootstrap
from tidegate.config import Config
from tidegate.drivers.process.spawn import OsProcesses
from tidegate.errors import CorruptCheckpointError, ExternalError, ResourceExhaustedError


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> list[socket.socket]:
    """Every socket of a pair that was made."""
    made: list[socket.socket] = []
    real: Callable[[], tuple[socket.socket, socket.socket]] = socket.socketpair

    def recorded() -> tuple[socket.socket, socket.socket]:
        pair = real()
        made.extend(pair)
        return pair

    monkeypatch.setattr(socket, "socketpair", recorded)
    return made


def test_a_fork_server_that_cannot_be_started_leaves_no_socket(
    tmp_path: Path, pairs: list[socket.socket]
) -> None:
    (tmp_path / "logs").write_text("no folder", encoding="utf-8")
    processes = OsProcesses({}, tmp_path / "logs")
    with pytest.raises(ExternalError, match="Cannot start the fork-server process"):
        processes.start_fork_server({}, log="fork_server.log", listener=lambda _: None)
    assert [each.fileno() for each in pairs] == [-1, -1]


def test_fork_server_start_leaves_no_socket_if_its_thread_cannot_start(
    tmp_path: Path, pairs: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    processes = OsProcesses({}, tmp_path)
    with pytest.raises(ResourceExhaustedError, match="Cannot start the fork-server process"):
        processes.start_fork_server({}, log="fork_server.log", listener=lambda _: None)
    assert [each.fileno() for each in pairs] == [-1, -1]


def test_a_local_cluster_that_does_not_start_leaves_no_folder_of_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoints" / "_storage").mkdir(parents=True)
    (tmp_path / "checkpoints" / "_storage" / "id").write_bytes(b"")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config = Config.from_dict({"checkpoint": {"dir": str(tmp_path / "checkpoints")}})
    with pytest.raises(CorruptCheckpointError, match="_storage/id"):
        bootstrap.local_cluster(config)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
