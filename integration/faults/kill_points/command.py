"""Runs `tidegate` with other mains for its processes.

The command is `python -m integration.faults.kill_points.command run ...`. The environment holds the
mains as JSON. All else is the command of users.
"""

from __future__ import annotations

import json
import os
from functools import partial

from tidegate.bootstrap import local_cluster
from tidegate.cli import local_run
from tidegate.cli.main import main

MAINS = "TIDEGATE_TEST_MAINS"

if __name__ == "__main__":
    mains = json.loads(os.environ[MAINS])
    local_run.local_cluster = partial(local_cluster, mains=mains)  # type: ignore[attr-defined]
    main()
