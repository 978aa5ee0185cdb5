"""The place of a checkpoint storage: URLs stay, and folders are seen from the caller's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.config import Config
from tidegate.storage_location import is_url, locate, with_absolute_folders


@pytest.mark.parametrize("url", ["s3://bucket/jobs", "file:///data/jobs", "memory://"])
def test_url_of_a_storage_is_not_changed(url: str) -> None:
    assert is_url(url)
    assert locate(url, Path("/project")) == url


def test_relative_storage_path_is_resolved_against_the_folder_of_the_caller() -> None:
    assert not is_url(".tidegate/checkpoints")
    assert locate(".tidegate/checkpoints", "/project") == "/project/.tidegate/checkpoints"
    assert locate("/mnt/shared", Path("/project")) == "/mnt/shared"


def test_folders_of_a_cluster_are_absolute() -> None:
    """User code may change the working folder of each process."""
    given = Config.from_dict({"checkpoint": {"dir": "saved"}, "logs": {"dir": "/var/log/jobs"}})
    found = with_absolute_folders(given, Path("/project"))
    assert (found.checkpoint.dir, found.logs.dir) == ("/project/saved", "/var/log/jobs")
    assert found.state == given.state  # it starts at the working folder of its job
