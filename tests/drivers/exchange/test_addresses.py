"""A slot that is killed early leaves its socket's folder; the next one to listen clears it away."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.drivers import local_sockets
from tidegate.drivers.exchange import addresses


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Short, as a socket's path must be: pytest's own folders are too deep.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def age(folder: Path) -> None:
    long_ago_s = time.time() - 2 * local_sockets.STALE_S
    os.utime(folder, (long_ago_s, long_ago_s))


def folder_of(listener: addresses.Listener) -> Path:
    assert listener.folder is not None
    return listener.folder


def test_listen_removes_only_old_socket_folders_without_a_listener(temporary: Path) -> None:
    killed, young, living = (addresses.listen(None) for _ in range(3))
    killed.socket.close()  # as the kernel does for a killed process: the folder stays
    young.socket.close()
    age(folder_of(killed))
    age(folder_of(living))
    foreign = temporary / "tidegate-else"
    foreign.mkdir()
    age(foreign)
    listener = addresses.listen(None)
    assert not folder_of(killed).exists()
    assert folder_of(young).exists()
    assert folder_of(living).exists()
    assert foreign.exists()
    for each in (living, listener):
        each.close()
        assert not folder_of(each).exists()
