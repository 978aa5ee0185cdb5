"""A small `make demo-spark`: the backfill survives its kills, and the output is exact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_demo_on_spark_is_exact_after_its_kills(tmp_path: Path) -> None:
    words = ["--records", "100000", "--directory", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "integration.demo.spark", *words],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict      exact: 110,000 orders" in done.stdout
    assert done.stdout.count("killed") >= 3
