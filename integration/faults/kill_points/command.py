"""Runs `tidegate` with other mains for its processes.

The command is `python -m integration.faults.kill_points.command run ...`. The environment holds the
mains as JSON. The command prints `STOP_ARRIVED` to stderr when a JobManager has acknowledged a
stop. All else is the command of users.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial, wraps
from typing import Any

from tidegate.bootstrap import local_cluster
from tidegate.cli.main import main
from tidegate.cli.run import local_run
from tidegate.controlplane.client.client import Client

MAINS = "TIDEGATE_TEST_MAINS"
STOP_ARRIVED = "A JobManager has the stop."

_stop = Client.stop


@wraps(_stop)
def stop_and_tell(self: Client, *arguments: Any, **options: Any) -> None:
    _stop(self, *arguments, **options)
    print(STOP_ARRIVED, file=sys.stderr, flush=True)


if __name__ == "__main__":
    mains = json.loads(os.environ[MAINS])
    local_run.local_cluster = partial(local_cluster, mains=mains)  # type: ignore[attr-defined]
    Client.stop = stop_and_tell  # type: ignore[method-assign]
    main()
