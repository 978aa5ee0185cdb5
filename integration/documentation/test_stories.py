"""The quickstart and the tutorial can be typed from an empty folder, with a broker of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.documentation.reader import Reader
from integration.support.running import ROOT

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

DOCS = ROOT / "docs"
TUTORIAL = ("index", "first-pipeline", "state", "test", "kill", "rescale", "upgrade")


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Reader]:
    """Give a reader with an empty folder. A broker that a page has started is stopped."""
    with Reader(tmp_path / "empty", {}) as reader:
        try:
            yield reader
        finally:
            tidegate = Path(sys.executable).with_name("tidegate")
            down = [str(tidegate), "kafka", "down", "--wipe"]
            subprocess.run(down, cwd=reader.folder, capture_output=True, check=False)


def test_quickstart_leads_to_exact_totals(story: Reader) -> None:
    assert story.follow(DOCS / "quickstart.md") > 5


@pytest.mark.slow
def test_tutorial_can_be_typed_from_its_start_to_its_end(story: Reader) -> None:
    assert sum(story.follow(DOCS / "tutorial" / f"{name}.md") for name in TUTORIAL) > 12


def test_the_tutorial_has_no_other_page() -> None:
    assert {page.stem for page in (DOCS / "tutorial").iterdir()} == set(TUTORIAL)
