"""Every command of a page runs as the page says, on a real broker.

`test_stories.py` has the quickstart and the tutorial. The pages here use the folder, the broker and
the job of the quickstart, one page after the other.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.documentation.reader import PageError, Reader
from integration.support.running import ROOT
from integration.website.blocks import SHELL, blocks_of
from integration.website.links import OUTSIDE
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

DOCS = ROOT / "docs"


def is_story(page: Path) -> bool:
    return page.name == "quickstart.md" or page.parent.name == "tutorial"


def has_commands(page: Path) -> bool:
    found = blocks_of(page, page.read_text(encoding="utf-8"))
    return any(each.language in SHELL and each.is_run for each in found)


ALL = [*sorted(DOCS.rglob("*.md")), *(ROOT / path for path in OUTSIDE), ROOT / "README.md"]
PAGES = [page for page in ALL if not is_story(page) and has_commands(page)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Give a reader who has done the quickstart: its files, its topics, and its first orders."""
    top = tmp_path_factory.mktemp("shop")
    with (
        EmbeddedKafka.start(directory=top / "kafka", owned=True) as kafka,
        Reader(
            top / "folder",
            {
                "TIDEGATE_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap,
                "TIDEGATE_JOBMANAGER__PORT": str(free_port()),
            },
        ) as reader,
    ):
        reader.save_files(DOCS / "quickstart.md")
        reader.type(
            "tidegate kafka topics create orders order-totals -p 4\n"
            "python shop.py orders 20000 | tidegate kafka produce orders --key-separator :\n"
        )
        reader.type("tidegate run totals:OrderTotals -p 2 --bounded\n")
        yield reader


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_of_a_page_run(page: Path, shop: Reader) -> None:
    assert shop.follow(page) > 0


def test_a_command_that_fails_and_an_output_that_differs_are_found(tmp_path: Path) -> None:
    with Reader(tmp_path / "folder", {}) as reader:
        reader.type("echo one 1 two")
        reader.compare_text("one 1\n")
        with pytest.raises(PageError, match="one 2"):
            reader.compare_text("one 2\n")
        with pytest.raises(PageError, match="exit code 3"):
            reader.type("exit 3")
        with pytest.raises(PageError, match="exit code 2"):
            reader.type("tidegate config --no-such-option")
