"""Settings of all unit tests, and the list of modules that grow too long, after every run.

Hypothesis has no deadlines, because the machine may be busy. `make check` gives each property a
quarter of its examples (`--hypothesis-profile check`), `make test` all of them.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

MODULE_LINES_WANTED = 400  # more is a warning here; more than 600 fails in test_tidy.py

settings.register_profile("check", deadline=None, max_examples=25)
settings.register_profile("tidegate", deadline=None, max_examples=100)
settings.load_profile("tidegate")


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Restore the default SIGINT handler.

    A shell starts background processes with SIGINT ignored. The test process would inherit that,
    and so would the processes that tests start and then interrupt.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    root = Path(__file__).parent.parent
    for top in ("framework", "pipelines", "integration", "tests"):
        for path in sorted((root / top).rglob("*.py")):
            lines = path.read_text(encoding="utf-8").count("\n")
            if lines > MODULE_LINES_WANTED:
                terminalreporter.write_line(
                    f"warning: {path.relative_to(root)} has {lines} lines"
                    f" (over {MODULE_LINES_WANTED})",
                    yellow=True,
                )
