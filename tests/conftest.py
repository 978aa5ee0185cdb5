"""Settings of all unit tests.

Hypothesis has no deadlines, because the machine may be busy. `make check` gives each property a
quarter of its examples (`--hypothesis-profile check`), `make test-all` all of them.
"""

from __future__ import annotations

import signal

import pytest
from hypothesis import settings

pytest_plugins = ["integration.support.failures"]

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
