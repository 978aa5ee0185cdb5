"""Scripts that tests of processes run: each has a Python process of its own."""

from __future__ import annotations

import subprocess
import sys


def run_script(script: str, status: int = 0) -> tuple[list[str], str]:
    """Run a script that ends with this status. Return the lines that it prints, and its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == status, done.stderr
    return done.stdout.splitlines(), done.stderr
