"""What `make bench` does to its page: parts of a table never take the place of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.bench import page
from integration.bench.page import Table


def test_a_table_replaces_its_section_unless_it_is_a_part(
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
