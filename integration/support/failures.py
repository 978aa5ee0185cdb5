"""A pytest plugin: prints each failure at once, and writes a file that says why each test failed.
The file lists the tests in the order of their files.

`integration/run_tests.py` reads the file. A test that failed only by a time limit, next to
other tests on a busy machine, may be run once more alone. Every other failure is final, above all a
comparison of records or totals. So the kinds of errors that count as a time limit are listed here,
and a condition that reads records is never one of them (`Run.until`).
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from integration.support.running import TooLateError

LATE = "late"
"""The name of the property of a report whose test failed by a time limit."""
FILE = "--failures"
_TIMEOUT = re.compile(r"\bTimeout \(>[\d.]+s\) from pytest-timeout")


def is_late(error: BaseException) -> bool:
    """Return whether an error says only that something took longer than a test allows."""
    if isinstance(error, TooLateError | subprocess.TimeoutExpired):
        return True
    # pytest-timeout has no class of its own for this. It interrupts a test anywhere, so the job of
    # a test may take its exception for one of user code, and quote it.
    return _TIMEOUT.search(str(error)) is not None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the path of the file."""
    parser.addoption(FILE, type=Path, help="write the failed tests to this file, as JSON")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report whether the test failed by a time limit."""
    report = yield
    if report.failed and call.excinfo is not None and is_late(call.excinfo.value):
        report.user_properties.append((LATE, True))
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Collect the reports where they are printed: not in the workers of pytest-xdist."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config), "tidegate-failures")


class _Failures:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._late: dict[str, bool] = {}
        self._places: dict[str, tuple[str, int]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.failed:
            return
        # A test that is late in its call and wrong in its teardown is wrong.
        late = (LATE, True) in report.user_properties
        self._late[report.nodeid] = late and self._late.get(report.nodeid, True)
        file, line, _name = report.location
        self._places[report.nodeid] = (file, line or 0)
        terminal = self._terminal()
        if terminal is not None:
            terminal.ensure_newline()
            terminal.section(f"{report.nodeid} ({report.when})", sep="_", red=True)
            report.toterminal(terminal._tw)
            for title, text in report.sections:
                terminal.section(title, sep="-")
                terminal.write_line(text.rstrip())

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._config.option.tbstyle = "no"  # the failures are on the screen already
        path: Path | None = self._config.getoption(FILE)
        if path is not None:
            in_order = sorted(self._late, key=self._places.__getitem__)
            failures = {test: self._late[test] for test in in_order}
            path.write_text(json.dumps(failures), encoding="utf-8")

    def _terminal(self) -> TerminalReporter | None:
        found: TerminalReporter | None = self._config.pluginmanager.get_plugin("terminalreporter")
        return found
