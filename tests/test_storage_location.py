"""The place of a checkpoint storage: URLs stay, and folders are seen from the caller's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.storage_location import is_url, locate


@pytest.mark.parametrize("url", ["s3://bucket/jobs", "file:///data/jobs", "memory://"])
def test_a_url_stays_as_it_is(url: str) -> None:
    assert is_url(url)
    assert locate(url, Path("/project")) == url


def test_a_relative_path_starts_at_the_folder_and_an_absolute_path_does_not() -> None:
    assert not is_url(".tidegate/checkpoints")
    assert locate(".tidegate/checkpoints", "/project") == "/project/.tidegate/checkpoints"
    assert locate("/mnt/shared", Path("/project")) == "/mnt/shared"
