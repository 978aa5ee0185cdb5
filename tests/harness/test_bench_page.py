"""What `make bench` does to its page: parts of a table never take the place of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.bench import page
from integration.bench.__main__ import told_of_page
from integration.bench.page import Table


def test_table_replaces_its_section_unless_it_is_partial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    both = Table("Cost", ("workload", "x"), [["one", "1.0"], ["two", "2.0"]])
    page.write([both, Table("Latency", ("p99",), [["9"]])], "4.3.0", 1_000)
    page.write([Table("Cost", ("workload", "x"), [["two", "3.0"]], whole=False)], "4.3.0", 1_000)
    page.write([Table("Latency", ("p99",), [["8"]])], "4.3.0", 2_000)
    text = page.PAGE.read_text()
    assert "| one | 1.0 |\n| two | 2.0 |" in text
    assert "| 3.0 |" not in text
    assert "| 8 |" in text
    assert "| 9 |" not in text
    assert text.index("## Cost") < text.index("1,000 records") < text.index("2,000 records")


def test_void_run_leaves_the_benchmark_page_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    table = Table("Cost", ("x",), [["1.0"]])
    said = told_of_page([table], "4.3.0", 1_000, holds=False)
    assert not page.PAGE.exists()
    assert said == "The run is void, so page.md is not changed. It lacks: Cost."
    told_of_page([table], "4.3.0", 1_000, holds=True)
    written = page.PAGE.read_text()
    told_of_page([Table("Cost", ("x",), [["9.0"]])], "4.3.0", 1_000, holds=False)
    assert page.PAGE.read_text() == written


def test_message_lists_the_tables_written_to_the_benchmark_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    tables = [Table("Cost", ("x",), [["1.0"]], whole=False), Table("Latency", ("p99",), [["9"]])]
    said = told_of_page(tables, "4.3.0", 1_000, holds=True)
    assert said == (
        "Tables written to page.md: Latency. Tables with missing rows were not written: Cost."
    )
