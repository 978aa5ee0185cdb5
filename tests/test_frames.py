"""A file is tidegate's own if it is in its package, or if tidegate has generated it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tidegate.frames import is_own_file
from tidegate.protocol import errors

PACKAGE = Path(tidegate.__file__).parent


@pytest.mark.parametrize(
    ("name", "own"),
    [
        (errors.__file__, True),
        ("<generated windows>", True),
        ("<fused orders>", True),
        (f"{PACKAGE}_orders/steps.py", False),
        (f"{PACKAGE.parent}/orders.py", False),
        ("<string>", False),
    ],
)
def test_file_of_tidegate_is_distinguished_from_that_of_a_user(name: str, own: bool) -> None:
    assert is_own_file(name) == own
